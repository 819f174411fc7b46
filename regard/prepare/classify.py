"""Texts with labels to the task of telling them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.config import DataConfig, Recipe, Split
from regard.config.data import LabelledData
from regard.config.task import ClassifyTask
from regard.data.labelled import Example, find_labels, in_fold, read_labelled, with_labels, with_numbers
from regard.data.layout import Layout, for_decoder, for_encoder
from regard.data.readings import Readings
from regard.data.text import BadLines, OnBad, find
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError
from regard.prepare.shared import HELD, Count, Say, check_context, check_metric, has, one_tokenizer, with_head
from regard.tasks.classify import Classify, Question, arrangement, measured


def prepare(recipe: Recipe, folder: Path, say: Say, count: Count | None) -> tuple[Recipe, Classify]:
    data = recipe.data
    assert isinstance(data, LabelledData)
    assert isinstance(recipe.task, ClassifyTask)
    check_metric(recipe, measured(recipe.task))
    check_context(recipe)
    if recipe.task.auxiliary and _reads(recipe):
        raise ConfigError(
            f"task.auxiliary is for systems that write, such as gpt, and {recipe.system} does not; write 0"
        )
    if recipe.task.kind != "number" and not data.labels:
        bad = BadLines()
        data = data.model_copy(update={"labels": find_labels(_read(data, "train", bad), bad)})
        recipe = recipe.model_copy(update={"data": data})
    texts = (text for example in _read(data, "train", BadLines()) for text in example.texts)
    marks = () if _reads(recipe) else ("delimiter", "extract")
    tokenizer = one_tokenizer(recipe, folder, say, lambda: texts, marks)
    question = question_of(recipe, tokenizer)
    train = readings(recipe, folder, "train", tokenizer, say, count)
    held: dict[str, Readings] = {
        split: readings(recipe, folder, split, tokenizer, say) for split in HELD if has(data, split)
    }
    how = recipe.train
    task = Classify(question, train, held, tokens=how.tokens, rows=how.rows, seed=how.seed, task=recipe.task)
    return with_head(recipe, "sentence", tokenizer.size, question.outputs), task


def question_of(recipe: Recipe, tokenizer: Tokenizer) -> Question:
    """What is asked, and how it is laid out for a system that reads or for one that writes."""
    data, task = recipe.data, recipe.task
    assert isinstance(data, LabelledData)
    assert isinstance(task, ClassifyTask)
    frame = for_encoder if _reads(recipe) else for_decoder
    layout = Layout(frame, arrangement(task, len(data.texts)), tokenizer.marks, data.longest)
    return Question(task.kind, len(data.texts), data.labels, layout)


def _reads(recipe: Recipe) -> bool:
    return "head" in type(recipe.model).model_fields


def readings(
    recipe: Recipe, folder: Path, split: Split, tokenizer: Tokenizer, say: Say, count: Count | None = None
) -> Readings:
    place = folder / "data" / split
    if place.exists():
        return Readings.open(place)
    say(f"reading the {split} split")
    bad, question = BadLines(), question_of(recipe, tokenizer)
    good = _good(_read(recipe.data, split, bad), question.labels, bad, recipe.data.bad_lines)
    found = Readings.build(place, good, question.labels, tokenizer, question.layout, bad=bad, progress=count)
    if bad:
        say(f"{split}: {bad}")
    return found


def _good(examples: Iterator[Example], labels: Sequence[str], bad: BadLines, on_bad: OnBad) -> Iterator[Example]:
    """Those whose label is one of these, or a number where there are none."""
    if labels:
        return with_labels(examples, labels, bad=bad, on_bad=on_bad)
    return with_numbers(examples, bad=bad, on_bad=on_bad)


def _read(data: DataConfig, split: Split, bad: BadLines) -> Iterator[Example]:
    assert isinstance(data, LabelledData)
    files = [find(name) for name in getattr(data, split)]
    found = read_labelled(
        files, texts=data.texts, label=data.label, separator=data.separator, bad=bad, on_bad=data.bad_lines
    )  # fmt: skip
    shared = data.folds and getattr(data, split) == data.train
    return in_fold(found, split, data.fold, data.folds) if shared else found
