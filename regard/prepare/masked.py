"""Documents to the task of guessing what is hidden in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regard.config import DataConfig, Recipe, Split
from regard.config.data import DocumentsData
from regard.config.task import MaskedTask
from regard.data.documents import Documents, Sentence, read_documents
from regard.data.text import BadLines, find
from regard.data.tokenizer import Tokenizer
from regard.prepare.shared import HELD, Count, Say, check_context, check_metric, has, one_tokenizer, with_head
from regard.tasks.masked import MEASURES, Masked


def prepare(recipe: Recipe, folder: Path, say: Say, count: Count | None) -> tuple[Recipe, Masked]:
    assert isinstance(recipe.task, MaskedTask)
    check_metric(recipe, MEASURES if recipe.task.next_sentence else MEASURES[:-1])
    check_context(recipe)
    texts = (sentence.text for sentence in sentences(recipe.data, "train", BadLines()))
    tokenizer = one_tokenizer(recipe, folder, say, lambda: texts, marks=("mask",))
    train = documents(recipe, folder, "train", tokenizer, say, count)
    held: dict[str, Documents] = {
        split: documents(recipe, folder, split, tokenizer, say) for split in HELD if has(recipe.data, split)
    }
    task = Masked(
        tokenizer, train, held,
        tokens=recipe.train.tokens, rows=recipe.train.rows, steps=recipe.train.steps * recipe.train.accumulate,
        seed=recipe.train.seed, longest=recipe.data.longest, task=recipe.task,
    )  # fmt: skip
    return with_head(recipe, "pretrain", tokenizer.size), task


def documents(
    recipe: Recipe, folder: Path, split: Split, tokenizer: Tokenizer, say: Say, count: Count | None = None
) -> Documents:
    place = folder / "data" / split
    if place.exists():
        return Documents.open(place)
    say(f"reading the {split} split")
    bad = BadLines()
    found = Documents.build(
        place, sentences(recipe.data, split, bad), tokenizer, bad=bad, on_bad=recipe.data.bad_lines, progress=count
    )
    if bad:
        say(f"{split}: {bad}")
    return found


def sentences(data: DataConfig, split: Split, bad: BadLines) -> Iterator[Sentence]:
    assert isinstance(data, DocumentsData)
    files = [find(name) for name in getattr(data, split)]
    return read_documents(files, sentences=data.sentences, bad=bad, on_bad=data.bad_lines)
