"""Words with tags to the task of tagging them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regard.config import Recipe, Split
from regard.config.data import TaggedData
from regard.config.task import TagTask
from regard.data.conll import Sentence, labels, read_tagged
from regard.data.text import BadLines, find
from regard.data.tokenizer import Tokenizer
from regard.data.words import Words
from regard.errors import DataError
from regard.prepare.shared import HELD, Count, Say, check_context, check_metric, has, one_tokenizer, with_head
from regard.tasks.tag import MEASURES, PLAIN_MEASURES, Tag


def prepare(recipe: Recipe, folder: Path, say: Say, count: Count | None) -> tuple[Recipe, Tag]:
    data, task = recipe.data, recipe.task
    assert isinstance(data, TaggedData)
    assert isinstance(task, TagTask)
    check_metric(recipe, PLAIN_MEASURES if task.scheme == "plain" else MEASURES)
    check_context(recipe)
    bad = BadLines()
    if not data.labels:
        data = data.model_copy(update={"labels": tuple(labels(_read(recipe, "train", bad), task.scheme))})
        recipe = recipe.model_copy(update={"data": data})
    if len(data.labels) < 2:
        alone = f"the tag {data.labels[0]!r} alone" if data.labels else "no tag"
        what = f"{', '.join(data.train)}: {alone}{f' ({bad})' if bad else ''}, and there is nothing to tell"
        raise DataError(f"{what}; name another column by data.tag, or two or more in data.labels")
    texts = (" ".join(sentence.words) for sentence in _read(recipe, "train", BadLines()))
    tokenizer = one_tokenizer(recipe, folder, say, lambda: texts)
    train = words(recipe, folder, "train", tokenizer, say, count)
    held: dict[str, Words] = {split: words(recipe, folder, split, tokenizer, say) for split in HELD if has(data, split)}
    how = recipe.train
    found = Tag(tokenizer, train, held, tokens=how.tokens, rows=how.rows, seed=how.seed, settings=task)
    return with_head(recipe, "words", tokenizer.size, len(data.labels)), found


def words(
    recipe: Recipe, folder: Path, split: Split, tokenizer: Tokenizer, say: Say, count: Count | None = None
) -> Words:
    assert isinstance(recipe.data, TaggedData)
    place = folder / "data" / split
    if place.exists():
        return Words.open(place)
    say(f"reading the {split} split")
    bad = BadLines()
    found = Words.build(
        place, _read(recipe, split, bad), tokenizer, recipe.data.labels,
        longest=recipe.data.longest, bad=bad, on_bad=recipe.data.bad_lines, progress=count,
    )  # fmt: skip
    if bad:
        say(f"{split}: {bad}")
    return found


def _read(recipe: Recipe, split: Split, bad: BadLines) -> Iterator[Sentence]:
    data, task = recipe.data, recipe.task
    assert isinstance(data, TaggedData)
    assert isinstance(task, TagTask)
    files = [find(name) for name in getattr(data, split)]
    return read_tagged(files, word=data.word, tag=data.tag, scheme=task.scheme, bad=bad, on_bad=data.bad_lines)
