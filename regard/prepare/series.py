"""Series of numbers to the task of saying something of them."""

from __future__ import annotations

from pathlib import Path

from regard.config import Recipe, Split
from regard.config.data import SeriesData
from regard.config.task import SeriesTask
from regard.data.numbers import permuted, read_numbers
from regard.data.series import MADE, Made, Source, Stored
from regard.data.text import BadLines, find
from regard.errors import ConfigError
from regard.prepare.shared import HELD, Count, Say, check_metric, has, with_model
from regard.tasks.series import Series, measured

EXAMPLES = 1000  # of a made task, held out


def prepare(recipe: Recipe, folder: Path, say: Say, count: Count | None) -> tuple[Recipe, Series]:
    data, task = recipe.data, recipe.task
    assert isinstance(data, SeriesData)
    assert isinstance(task, SeriesTask)
    _check_made(data, task)
    train = source(recipe, folder, "train", say)
    check_metric(recipe, measured(task.kind, blank=train.blank is not None))
    recipe = recipe.model_copy(update={"data": data.model_copy(update={"labels": train.names})})
    held: dict[str, Source] = {split: source(recipe, folder, split, say) for split in HELD if has(data, split)}
    for one in (train, *held.values()):
        _check_form(recipe, one, train)
    series = Series(train, held, tokens=recipe.train.tokens, rows=recipe.train.rows, seed=recipe.train.seed)
    return with_model(recipe, vocab=None, inputs=train.channels, labels=train.outputs), series


def source(recipe: Recipe, folder: Path, split: Split, say: Say) -> Source:
    """The series of a split: made when they are asked for, of files, or a share of those to learn from."""
    data = recipe.data
    assert isinstance(data, SeriesData)
    if data.made is not None:
        return Made(data.made, split, data.count if split == "train" else EXAMPLES, data.length)
    if data.held and not data.valid and split != "test":
        train, valid = _stored(recipe, folder, "train", say).split(data.held)
        return train if split == "train" else valid
    return _stored(recipe, folder, split, say)


def _stored(recipe: Recipe, folder: Path, split: Split, say: Say) -> Stored:
    """Files are read once."""
    data, task = recipe.data, recipe.task
    assert isinstance(data, SeriesData)
    assert isinstance(task, SeriesTask)
    place = folder / "data" / split
    if place.exists():
        return Stored.open(place)
    say(f"reading the {split} split")
    bad = BadLines()
    files = [find(name) for name in getattr(data, split)]
    found = read_numbers(files, split, longest=data.longest, bad=bad, on_bad=data.bad_lines)
    if data.permute is not None:
        found = permuted(found, data.permute, bad.file)
    stored = Stored.build(place, found, task.kind, data.labels, bad=bad, on_bad=data.bad_lines)
    if bad:
        say(f"{split}: {bad}")
    return stored


def _check_made(data: SeriesData, task: SeriesTask) -> None:
    if data.made is None:
        return
    if task.kind != (kind := MADE[data.made].kind):
        raise ConfigError(f'task.kind = "{task.kind}": made = "{data.made}" asks for another; write kind = "{kind}"')
    if data.labels not in ((), MADE[data.made].names):
        raise ConfigError("data.labels: a made task has labels of its own; leave it out")
    if data.permute is not None:
        raise ConfigError("data.permute: a made series has no other order than its own; leave it out")
    if data.held:
        raise ConfigError("data.held: a made task has splits of its own; leave it out")


def _check_form(recipe: Recipe, one: Source, train: Source) -> None:
    """What is held out has the form of what is learnt from, and the model can hold it."""
    if one.channels != train.channels:
        what = f"data: {one.channels} channels are held out, but {train.channels} are learnt from"
        raise ConfigError(f"{what}; give files of one form")
    context, longest = getattr(recipe.model, "longest", None), int(one.lengths.max())
    if context is not None and context < longest:
        raise ConfigError(
            f"model.context = {context} is shorter than the longest example of {longest} steps; "
            f"write model.context = {longest}, or data.longest = {context} to do without such examples"
        )
