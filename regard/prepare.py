"""From a recipe's words about data to a task: read the text, train the tokenizers, fill the stores.

What is there already is kept, so that a run that was killed while it got ready goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from regard.config import DataConfig, Recipe, Split
from regard.data.spoken import spoken
from regard.data.store import Store
from regard.data.text import BadLines, find, read_pairs
from regard.data.tokenizer import Tokenizers, join
from regard.metrics.translation import BLEU
from regard.tasks.rewrite import Held, Rewrite

Say = Callable[[str], None]
HELD: tuple[Split, ...] = ("valid", "test")
ANY = 65_536  # a held-out example is never left out for its length


def prepare(recipe: Recipe, folder: Path, say: Say = lambda text: None) -> tuple[Recipe, Rewrite]:
    """The task of a recipe, and the recipe with the sizes of its vocabularies filled in."""
    if (folder / "tokenizer.json").exists():
        tokenizers = Tokenizers.load(folder)
    else:
        say("training the tokenizer")
        tokenizers = train_tokenizers(recipe)
        tokenizers.save(folder)
    task = Rewrite(
        tokenizers,
        _store(recipe, folder, "train", tokenizers, say),
        {split: hold(recipe, folder, split, tokenizers, say) for split in HELD if has(recipe.data, split)},
        tokens=recipe.train.tokens,
        seed=recipe.train.seed,
        smoothing=recipe.task.smoothing,
        bleu=bleu_of(recipe),
        how=recipe.decode,
    )
    sizes = {"vocab": tokenizers.target.size}
    if not tokenizers.joint:
        sizes["source_vocab"] = tokenizers.source.size
    model = type(recipe.model)(**{**recipe.model.model_dump(), **sizes})
    return recipe.model_copy(update={"model": model}), task


def train_tokenizers(recipe: Recipe) -> Tokenizers:
    sources = (source for _, source, _ in examples(recipe.data, "train", BadLines()))
    targets = (target for _, _, target in examples(recipe.data, "train", BadLines()))
    return Tokenizers.train(sources, targets, **recipe.tokens.model_dump())


def hold(recipe: Recipe, folder: Path, split: Split, tokenizers: Tokenizers, say: Say = lambda text: None) -> Held:
    """A held-out split: nothing of it is skipped, however long."""
    store = _store(recipe, folder, split, tokenizers, say)
    pairs = [(source, target) for _, source, target in examples(recipe.data, split, BadLines())]
    mark = recipe.tokens.continuation
    return Held(store, [source for source, _ in pairs], [join(target, mark) for _, target in pairs])


def bleu_of(recipe: Recipe) -> BLEU:
    return BLEU(recipe.task.bleu, recipe.tokens.lowercase)


def examples(data: DataConfig, split: Split, bad: BadLines) -> Iterator[tuple[int, str, str]]:
    """Line number, source and target of each example of a split."""
    if data.made is not None:
        count = data.count if split == "train" else data.held
        for number, (_, source, target) in enumerate(spoken(data.languages, split, count), 1):
            yield number, source, target
        return
    files = [find(name) for name in getattr(data, split)]
    yield from read_pairs(files, fields=data.fields, bad=bad, on_bad=data.bad_lines)


def _store(recipe: Recipe, folder: Path, split: Split, tokenizers: Tokenizers, say: Say) -> Store:
    place = folder / "data" / split
    if place.exists():
        return Store.open(place)
    bad = BadLines()
    say(f"reading the {split} split")
    lines = examples(recipe.data, split, bad)
    longest = recipe.data.longest if split == "train" else ANY
    store = Store.build(place, lines, tokenizers, longest=longest, bad=bad, on_bad=recipe.data.bad_lines)
    if bad:
        say(f"{split}: {bad}")
    return store


def has(data: DataConfig, split: str) -> bool:
    return data.made is not None or bool(getattr(data, split))
