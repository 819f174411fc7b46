"""How a run was trained, or is being trained now: its log, and where it looked in one text after each checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from regard.core.linear import pack
from regard.data.readings import Readings
from regard.data.store import Store
from regard.data.stream import Stream
from regard.data.tokenizer import Tokenizers
from regard.device import find_device
from regard.errors import RegardError
from regard.models import build
from regard.pipeline import Pipeline, check_vocabulary, read_run
from regard.pipeline.classify import Classifier
from regard.pipeline.language import Writer
from regard.pipeline.rewrite import Rewriter
from regard.training.checkpoint import found, step_of
from regard.training.log import plain, read_metrics
from regard.view.capture import CROSS, sides
from regard.weights import read_weights

MOST = 64  # checkpoints, the newest
KEPT = 1024  # alignments that are remembered
WORDS = 24  # of running text, to show


class Courses:
    """What was computed is kept: a checkpoint that is there never changes."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[Path, str], dict[str, Any]] = OrderedDict()

    def of(self, pipeline: Pipeline, text: str) -> dict[str, Any]:
        path = pipeline.folder / "metrics.jsonl"
        lines = [plain(line) for line in read_metrics(path)] if path.exists() else []
        return {"metrics": lines, "text": text, "checkpoints": list(self._looks(pipeline, text))}

    def _looks(self, pipeline: Pipeline, text: str) -> Iterator[dict[str, Any]]:
        for path in sorted(found(pipeline.folder / "checkpoints"), key=step_of)[-MOST:]:
            if (path, text) not in self.known:
                try:
                    self.known[path, text] = {"step": step_of(path), **look(pipeline, path, text)}
                except (RegardError, OSError):  # it was tidied away in this moment
                    continue
                while len(self.known) > KEPT:
                    self.known.popitem(last=False)
            yield self.known[path, text]


def look(pipeline: Pipeline, checkpoint: Path, text: str) -> dict[str, Any]:
    """Where in the source each token looked: the mean of the heads of the last attention."""
    model = build(pipeline.recipe.system, pipeline.recipe.model)  # type: ignore[arg-type]
    read_weights(checkpoint / "model.safetensors", model)
    device = next(pipeline.model.parameters()).device
    trace = replace(pipeline, model=model.to(device).eval()).look(text)
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


def held_out(pipeline: Pipeline) -> str:
    """A text that was not trained on, in the form in which the task is asked; nothing where none is kept."""
    place = pipeline.folder / "data" / "valid"
    if not place.exists():
        return ""
    match pipeline:
        case Rewriter() if len(store := Store.open(place)):
            source, _ = store.pair(0)
            return pipeline.tokenizers.source.decode(source.tolist())
        case Writer():
            stream = Stream.open(place)
            return pipeline.tokenizer.decode(stream.read(np.array([0]), min(WORDS, len(stream)))[0].tolist())
        case Classifier() if pipeline.question.kind != "choice":
            tokens = Readings.open(place).batch(np.array([0])).sequences[0].tolist()
            texts = groupby(tokens, pipeline.tokenizer.special.__contains__)  # marks stand around them
            return "\t".join(pipeline.tokenizer.decode(list(text)) for mark, text in texts if not mark)
    return ""


def newest(folder: Path, device: str) -> Pipeline:
    """A run that is being trained, as its last checkpoint has it."""
    recipe, tokenizers = read_run(folder), Tokenizers.load(folder)
    check_vocabulary(recipe, tokenizers)
    model = build(recipe.system, recipe.model)  # type: ignore[arg-type]
    read_weights(found(folder / "checkpoints")[-1] / "model.safetensors", model)
    kind: type[Pipeline] = import_module(f"regard.pipeline.{recipe.task.name}").PIPELINE
    return kind(recipe, pack(model.to(find_device(device)).eval()), tokenizers, folder)
