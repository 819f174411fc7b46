"""Pairs of texts to the task of rewriting one into the other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from regard.config import DataConfig, Recipe, Split
from regard.config.data import PairsData
from regard.config.task import RewriteTask
from regard.data.spoken import spoken
from regard.data.store import Store
from regard.data.synthetic import copies
from regard.data.text import BadLines, find, read_pairs, unseen
from regard.data.tokenizer import Tokenizers, join
from regard.disk import write
from regard.errors import ConfigError, DataError
from regard.metrics.translation import BLEU
from regard.prepare.shared import HELD, Count, Say, check_context, check_metric, has, tokenizers_of, with_model
from regard.tasks.rewrite import MEASURES, Held, Rewrite

ANY = 65_536  # tokens


def prepare(
    recipe: Recipe, folder: Path, say: Say = lambda text: None, count: Count | None = None
) -> tuple[Recipe, Rewrite]:
    _check(recipe)
    tokenizers = _tokenizers(recipe, folder, say)
    task = Rewrite(
        tokenizers,
        _store(recipe, folder, "train", tokenizers, say, count),
        {split: hold(recipe, folder, split, tokenizers, say) for split in HELD if has(recipe.data, split)},
        tokens=recipe.train.tokens,
        rows=recipe.train.rows,
        seed=recipe.train.seed,
        task=recipe.task,
        bleu=bleu_of(recipe),
        how=recipe.decode,
    )
    sizes = {"vocab": tokenizers.target.size}
    if not tokenizers.joint:
        sizes["source_vocab"] = tokenizers.source.size
    return with_model(recipe, **sizes), task


def hold(recipe: Recipe, folder: Path, split: Split, tokenizers: Tokenizers, say: Say) -> Held:
    """A held-out split: nothing of it is skipped for its length, unless the model's positions end before it does."""
    store = _store(recipe, folder, split, tokenizers, say)
    pairs = _text(recipe, folder / "data" / f"{split}.json", split, store)
    mark = recipe.tokens.continuation
    return Held(store, [source for source, _ in pairs], [join(target, mark) for _, target in pairs])


def _text(recipe: Recipe, place: Path, split: Split, store: Store) -> list[tuple[str, str]]:
    """The text of a held-out split, kept in the run: it is measured on what it was, whatever becomes of the file."""
    if not place.exists():
        lines = list(examples(recipe.data, split, BadLines()))
        read, stored = Counter(line for line, _, _ in lines), Counter(store.lines)
        pairs = [(source, target) for line, source, target in lines if stored[line] == read[line]]  # whole dialogues
        write(place, json.dumps(pairs, ensure_ascii=False).encode("utf-8", "replace"))
    try:
        return [(source, target) for source, target in json.loads(place.read_text("utf-8"))]
    except (ValueError, TypeError):
        raise DataError(
            f"{place}: not what was written; delete it, and it is made again from the recipe's files"
        ) from None


def bleu_of(recipe: Recipe) -> BLEU:
    assert isinstance(recipe.task, RewriteTask)
    return BLEU(recipe.task.bleu, recipe.tokens.lowercase)


def examples(data: DataConfig, split: Split, bad: BadLines) -> Iterator[tuple[int, str, str]]:
    """Line number, source and target of each example of a split."""
    assert isinstance(data, PairsData)
    if data.made is not None:
        for number, (source, target) in enumerate(_made(data, split), 1):
            bad.read += 1
            yield number, source, target
        return
    files = [find(name) for name in getattr(data, split)]
    pairs = read_pairs(files, fields=data.fields, turns=data.turns, bad=bad, on_bad=data.bad_lines)
    if data.unseen and split in HELD:
        pairs = unseen(pairs, examples(data, "train", BadLines()), bad=bad, on_bad=data.bad_lines)
    yield from pairs


def _made(data: PairsData, split: Split) -> Iterator[tuple[str, str]]:
    count = data.count if split == "train" else data.held
    if data.made == "copy":
        return copies(split, count, longest=data.longest - 1)
    return ((source, target) for _, source, target in spoken(data.languages, split, count))


def _check(recipe: Recipe) -> None:
    assert isinstance(recipe.task, RewriteTask)
    check_metric(recipe, (*MEASURES, "free_perplexity") if recipe.task.free_running else MEASURES)
    bleu_of(recipe).counter()
    if not recipe.tokens.joint and getattr(recipe.model, "tied", None) == "all":
        raise ConfigError(
            'model.tied: two vocabularies cannot share one matrix; write tied = "target", or tokens.joint = true'
        )
    check_context(recipe)


def _tokenizers(recipe: Recipe, folder: Path, say: Say) -> Tokenizers:
    def learn() -> Tokenizers:
        sources = (source for _, source, _ in examples(recipe.data, "train", BadLines()))
        targets = (target for _, _, target in examples(recipe.data, "train", BadLines()))
        return Tokenizers.train(sources, targets, **recipe.tokens.model_dump())

    return tokenizers_of(recipe, folder, say, learn)


def _store(
    recipe: Recipe, folder: Path, split: Split, tokenizers: Tokenizers, say: Say, count: Count | None = None
) -> Store:
    place = folder / "data" / split
    if place.exists():
        return Store.open(place)
    say(f"reading the {split} split")
    bad = BadLines()
    lines = examples(recipe.data, split, bad)
    longest = recipe.data.longest if split == "train" else getattr(recipe.model, "longest", None) or ANY
    store = Store.build(
        place, lines, tokenizers, longest=longest, bad=bad, on_bad=recipe.data.bad_lines, progress=count
    )  # fmt: skip
    if bad:
        say(f"{split}: {bad}")
    return store
