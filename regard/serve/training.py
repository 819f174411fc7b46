"""How a run was trained, or is being trained now: its log, and where it looked in one text along the way.

A training leaves looks at one held-out pair of its own (looks.jsonl). For another text, or where there are none, the
checkpoints are asked, one by one, so that others are served in between.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from regard.config.data import StreamData
from regard.data.readings import Readings
from regard.data.store import Store
from regard.data.stream import Stream
from regard.device import find_device
from regard.errors import RegardError
from regard.fast import prepare
from regard.models import build
from regard.pipeline import Pipeline, read_run, vocabularies
from regard.pipeline.classify import Classifier
from regard.pipeline.language import Writer
from regard.pipeline.rewrite import Rewriter
from regard.prepare.language import own
from regard.serve.queue import Heed, Reading, Ticket
from regard.serve.reading import heeding
from regard.tasks.rewrite import aligned, typical
from regard.training.checkpoint import found, step_of
from regard.training.log import plain, read_metrics
from regard.view.capture import CROSS, sides
from regard.weights import read_weights

MOST = 64  # looks at a time
KEPT = 1024  # looks that are remembered
WORDS = 24  # of running text, to show


class Courses:
    """What was computed is kept: a checkpoint never changes, and what it looked at is known when it has been tidied
    away."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[Path, str], dict[str, Any]] = OrderedDict()

    def looking(self, ticket: Ticket, pipeline: Pipeline, text: str) -> Reading:
        """Asks the checkpoints that were not asked yet; without a text, about the held-out one."""

        def read(paths: Sequence[Path], heed: Heed) -> Sequence[Path]:
            for path in paths:
                self._look(pipeline, path, text, heed)
            return paths

        paths = sorted(found(pipeline.folder / "checkpoints"), key=step_of)[-MOST:]
        return Reading(ticket, [path for path in paths if (path, text) not in self.known], read, at_once=1)

    def _look(self, pipeline: Pipeline, path: Path, text: str, heed: Heed) -> None:
        try:
            self.known[path, text] = {"step": step_of(path), **look(pipeline, path, text, heed)}
        except (RegardError, OSError):  # it was tidied away in this moment, or has nothing to look with
            return
        while len(self.known) > KEPT:
            self.known.popitem(last=False)

    def of(self, pipeline: Pipeline, text: str) -> list[dict[str, Any]]:
        """The last looks that are known, in the order of their steps."""
        place = pipeline.folder / "checkpoints"
        looks = [look for (path, asked), look in self.known.items() if (path.parent, asked) == (place, text)]
        return sorted(looks, key=lambda look: int(look["step"]))[-MOST:]


def log_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    return _lines(pipeline.folder / "metrics.jsonl")


def left_by(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The looks that the training itself left: the first, the last, and of those between not too many."""
    lines = _lines(pipeline.folder / "looks.jsonl")
    apart = max(1, (len(lines) - 1) / (MOST - 1))
    places = [round(i * apart) for i in range(MOST)]
    return [{"step": lines[at]["step"], **told(lines[at])} for at in places if at < len(lines)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [plain(line) for line in read_metrics(path)] if path.exists() else []


def told(look: Mapping[str, Any]) -> dict[str, Any]:
    """A `Look`, as the page is told of it."""
    same = {name: look[name] for name in ("name", "rows", "columns", "weights")}
    return {**same, "across": True, "caption": f"{look['text']} → {look['answer']}"}


def look(pipeline: Pipeline, checkpoint: Path, text: str, heed: Heed) -> dict[str, Any]:
    """Where each token looked: the mean of the heads of the last attention. Without a text, while the held-out pair
    was written; so the rows are the same after every checkpoint."""
    model = build(pipeline.recipe.system, pipeline.recipe.model)  # type: ignore[arg-type]
    read_weights(checkpoint / "model.safetensors", model)
    model.to(next(pipeline.model.parameters()).device).eval()
    with heeding(model, heed):
        if isinstance(pipeline, Rewriter) and not text and (pair := held_pair(pipeline))[0]:
            seen = aligned(model, pipeline.tokenizers, *pair)
            if seen is not None:
                return told(vars(seen))
        one = {"sample": False, "beam": 1, "nbest": 1, "longest": 1}  # a token after the text, and no lots
        how = one if isinstance(pipeline, Writer) else {}
        trace = replace(pipeline, model=model).look(text or shown(pipeline), **how)
    name = trace.pick()
    rows, columns = trace.axes(name)
    return {
        "name": name,
        "across": sides(name) == CROSS,
        "caption": trace.caption,
        "rows": list(rows),
        "columns": list(columns),
        "weights": trace.mean(name).astype(float).round(4).tolist(),
    }


def shown(pipeline: Pipeline) -> str:
    """The text that a training is shown with where none is asked for."""
    return held_out(pipeline) or pipeline.example("a")


def held_out(pipeline: Pipeline) -> str:
    """A text that was not trained on, in the form in which the task is asked; nothing where none is kept."""
    place = pipeline.folder / "data" / "valid"
    match pipeline:
        case Rewriter():
            return pipeline.tokenizers.source.decode(held_pair(pipeline)[0])
        case Writer() if stream := held_stream(pipeline):
            return pipeline.tokenizer.decode(stream.read(np.array([0]), min(WORDS, len(stream)))[0].tolist())
        case Classifier() if place.exists() and pipeline.question.kind != "choice":
            tokens = Readings.open(place).batch(np.array([0])).sequences[0].tolist()
            texts = groupby(tokens, pipeline.tokenizer.special.__contains__)  # marks stand around them
            return "\t".join(pipeline.tokenizer.decode(list(text)) for mark, text in texts if not mark)
    return ""


def held_pair(pipeline: Rewriter) -> tuple[list[int], list[int]]:
    """Source and target of the pair that a training looks at; of a long text the shortest there is."""
    place = pipeline.folder / "data" / "valid"
    if not place.exists():
        return [], []
    store = Store.open(place)
    source, target = store.pair(typical(store) or 0)
    return source.tolist(), target.tolist()


def held_stream(pipeline: Writer) -> Stream | None:
    """Text of its own, or a share of the training's; None where none was prepared here."""
    data, place = pipeline.recipe.data, pipeline.folder / "data"
    assert isinstance(data, StreamData)
    if own(data, "valid"):
        return Stream.open(place / "valid") if (place / "valid").exists() else None
    return Stream.open(place / "train").split(data.held)[1] if (place / "train").exists() else None


def newest(folder: Path, *, device: str, arithmetic: str) -> Pipeline:
    """A run that is being trained, as its last checkpoint has it."""
    recipe = read_run(folder)
    tokenizers = vocabularies(recipe, folder)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    read_weights(found(folder / "checkpoints")[-1] / "model.safetensors", model)
    kind: type[Pipeline] = import_module(f"regard.pipeline.{recipe.task.name}").PIPELINE
    return kind(recipe, prepare(model.to(find_device(device)).eval(), arithmetic), tokenizers, folder)
