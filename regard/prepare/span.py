"""Questions about passages to the task of finding their answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regard.config import DataConfig, Recipe, Split
from regard.config.data import QuestionsData
from regard.config.task import SpanTask
from regard.data.squad import Question, read_questions
from regard.data.text import BadLines, find
from regard.data.tokenizer import Tokenizer
from regard.data.windows import Cut, Windows
from regard.prepare.shared import HELD, Count, Say, check_context, check_metric, has, one_tokenizer, with_head
from regard.tasks.span import MEASURES, OF_BOTH_KINDS, Span


def prepare(recipe: Recipe, folder: Path, say: Say, count: Count | None) -> tuple[Recipe, Span]:
    assert isinstance(recipe.task, SpanTask)
    check_metric(recipe, (*MEASURES, *OF_BOTH_KINDS) if recipe.task.impossible else MEASURES)
    check_context(recipe)
    tokenizer = one_tokenizer(recipe, folder, say, lambda: _texts(recipe))
    train = windows(recipe, folder, "train", tokenizer, say, count)
    held: dict[str, Windows] = {
        split: windows(recipe, folder, split, tokenizer, say) for split in HELD if has(recipe.data, split)
    }
    how = recipe.train
    task = Span(tokenizer, train, held, tokens=how.tokens, rows=how.rows, seed=how.seed, settings=recipe.task)
    return with_head(recipe, "words", tokenizer.size, 2), task


def windows(
    recipe: Recipe, folder: Path, split: Split, tokenizer: Tokenizer, say: Say, count: Count | None = None
) -> Windows:
    assert isinstance(recipe.task, SpanTask)
    place = folder / "data" / split
    if place.exists():
        return Windows.open(place, tokenizer.marks)
    say(f"reading the {split} split")
    bad = BadLines()
    cut = Cut(recipe.data.longest, recipe.task.question, recipe.task.stride)
    asked = questions(recipe.data, split, bad, impossible=recipe.task.impossible)
    found = Windows.build(place, asked, tokenizer, cut, progress=count)
    if bad:
        say(f"{split}: {bad}")
    return found


def questions(data: DataConfig, split: Split, bad: BadLines, *, impossible: bool) -> Iterator[Question]:
    assert isinstance(data, QuestionsData)
    files = [find(name) for name in getattr(data, split)]
    return read_questions(files, impossible=impossible, bad=bad, on_bad=data.bad_lines)


def _texts(recipe: Recipe) -> Iterator[str]:
    last = None
    for question in questions(recipe.data, "train", BadLines(), impossible=True):
        yield question.text
        if question.passage != last:
            yield question.passage
        last = question.passage
