"""Running text to the task of going on with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.config import DataConfig, Recipe, Split
from regard.config.data import StreamData
from regard.config.task import LanguageTask
from regard.data import maps, music
from regard.data.stream import Piece, Stream, read_text
from regard.data.text import BadLines, find
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError
from regard.prepare.shared import HELD, Count, Say, check_context, check_metric, one_tokenizer, with_model
from regard.tasks.language import Language, measured
from regard.tasks.last_word import AHEAD

LINES = 1000  # of a made task, held out


def prepare(recipe: Recipe, folder: Path, say: Say, count: Count | None) -> tuple[Recipe, Language]:
    data = recipe.data
    assert isinstance(data, StreamData)
    task = recipe.task
    assert isinstance(task, LanguageTask)
    if data.context >= data.longest:
        what = f"data.context = {data.context} leaves nothing to count of windows of data.longest = {data.longest}"
        raise ConfigError(f"{what}; write a smaller one")
    check_counted(task, data, 'write documents = "line"')
    check_metric(recipe, measured(task.counted, _stop(data)))
    check_context(recipe)
    tokenizer = one_tokenizer(recipe, folder, say, lambda: _words(data))
    train = stream(recipe, folder, "train", tokenizer, say, count)
    held: dict[str, Stream] = {
        split: stream(recipe, folder, split, tokenizer, say) for split in HELD if own(data, split)
    }
    if data.held and "valid" not in held:
        train, held["valid"] = train.split(data.held)
    how = recipe.train
    found = Language(
        tokenizer, train, held, tokens=how.tokens, rows=how.rows, seed=how.seed, **reading(recipe)
    )  # fmt: skip
    return with_model(recipe, vocab=tokenizer.size), found


def check_counted(task: LanguageTask, data: StreamData, instead: str) -> None:
    if task.counted in AHEAD and data.documents not in ("line", "every_line"):
        what = f'task.counted = "{task.counted}" is of lines, but data.documents = "{data.documents}"'
        raise ConfigError(f"{what}; {instead}")


def reading(recipe: Recipe) -> dict[str, Any]:
    """How the task reads a text, in training and when it is measured."""
    data, task = recipe.data, recipe.task
    assert isinstance(data, StreamData)
    assert isinstance(task, LanguageTask)
    return {
        "window": data.longest,
        "apart": data.apart,
        "order": data.order,
        "context": data.context,
        "counted": task.counted,
        "stop": _stop(data),
    }


def _stop(data: StreamData) -> str:
    """The word that ends a frame, where the text is music."""
    return music.STOP if _is_music(data) else ""


def _is_music(data: StreamData) -> bool:
    return data.made is None and data.train[0].endswith(".mat")


def stream(
    recipe: Recipe, folder: Path, split: Split, tokenizer: Tokenizer, say: Say, count: Count | None = None
) -> Stream:
    place = folder / "data" / split
    if place.exists():
        return Stream.open(place)
    say(f"reading the {split} split")
    bad = BadLines()
    found = Stream.build(place, pieces(recipe.data, split, bad), tokenizer, progress=count)
    if bad:
        say(f"{split}: {bad}")
    return found


def own(data: StreamData, split: str) -> bool:
    """Whether a split has text of its own, and is not a share of the training's."""
    return data.made is not None or bool(getattr(data, split))


def pieces(data: DataConfig, split: Split, bad: BadLines) -> Iterator[Piece]:
    """The documents of a split. A .mat holds all splits of a collection of music."""
    assert isinstance(data, StreamData)
    if data.made is not None:
        yield from map(Piece, maps.maps(split, data.count if split == "train" else LINES))
        return
    files = [find(name) for name in getattr(data, split)]
    scores = [path for path in files if path.suffix == ".mat"]
    for path in scores:
        yield from map(Piece, music.chorales(path, split))
    texts = [path for path in files if path not in scores]
    yield from read_text(texts, data.documents, bad=bad, on_bad=data.bad_lines)


def _words(data: StreamData) -> Iterator[str]:
    """What a vocabulary is learnt from; of a made task, and of music, it is known beforehand."""
    if data.made is not None:
        yield maps.WORDS
    elif _is_music(data):
        yield music.WORDS
    else:
        yield from (piece.text for piece in pieces(data, "train", BadLines()))
