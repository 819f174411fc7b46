"""Numbers in, step by step; a number, a label, labels or the next frame out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config import Split
from regard.config.data import SeriesData
from regard.config.task import SeriesTask
from regard.core.beside import dissect
from regard.core.watch import watch
from regard.data.numbers import AS_IT_IS, Scale, order_of, read_inputs, scale_of
from regard.data.text import find
from regard.errors import DataError
from regard.pipeline.base import Pipeline, Progress, Reply, Say
from regard.prepare.series import source
from regard.tasks.classify import Classified
from regard.tasks.series import Answer, Frame, measure, predict, suited
from regard.view.capture import Trace, keep

FEW = 4  # channels that are written out


@dataclass(frozen=True)
class Predictor(Pipeline):
    """A series is given as JSON, a list of steps: `[[0.3, 1], [0.7, 0]]`, or `[3, 1, 4]` where a step is one number; in
    Python as an array too. Its numbers are those of the data files: what is done to them there is done here.
    """

    takes = frozenset(("top",))

    @property
    def kind(self) -> str:
        assert isinstance(self.recipe.task, SeriesTask)
        return self.recipe.task.kind

    @property
    def channels(self) -> int:
        return int(self.recipe.model.inputs)  # type: ignore[attr-defined]

    @property
    def names(self) -> tuple[str, ...]:
        """Of what is told; numbers, where there are no others."""
        assert isinstance(self.recipe.data, SeriesData)
        return self.recipe.data.labels or tuple(map(str, range(self.recipe.model.labels)))  # type: ignore[attr-defined]

    @property
    def longest(self) -> int:
        most: int | None = getattr(self.model, "longest", None)
        return self.recipe.data.longest if most is None else min(most, self.recipe.data.longest)

    def answers(self, texts: Sequence[Any], **how: Any) -> list[Answer]:
        self.refuse_decoding(how)
        examples = [self.read(text, number) for number, text in enumerate(texts, 1)]
        return predict(self.model, self.kind, self.names, examples)

    def parts(self, given: Any) -> Any:
        """It is made of numbers, which `read` looks at."""
        return []

    def ask(self, texts: Sequence[str], *, top: int = 5, **how: Any) -> list[Reply]:
        self.refuse_unknown(how)
        return [_reply(found, top) for found in self.answers(texts)]

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        self.refuse_decoding(how)
        with self.place(split, files) as (recipe, folder, which):
            held = source(recipe, folder, which, say)
            if held.channels != self.channels:
                wanted = f"this model reads {self.channels}; give files of the form that it was trained on"
                raise DataError(f"{', '.join(files)}: {held.channels} channels, but {wanted}")
            return measure(self.model, held, tokens=recipe.train.tokens, progress=progress)

    @torch.inference_mode()
    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the series was read, and in the end while it was answered."""
        self.refuse_decoding(how)
        x = torch.from_numpy(self.read(text, 1))[None]
        with watch(self.model) as seen, dissect(self.model) as parts:
            self.model(None, None, suited(self.model, x))
        maps = {name: calls[0][0].float().cpu().numpy() for name, calls in seen.items() if calls}
        steps = [" ".join(f"{number:.3g}" for number in step) for step in x[0].tolist()]
        answer, *_ = self.ask([text])[0].text.split("\t")
        target, title = (*steps[1:], answer), self.folder.name
        return Trace((), target, maps, title, caption=answer, start=steps[0], parts=keep(parts))

    # ---- what is given

    def read(self, given: Any, number: int) -> np.ndarray:
        """Steps × channels, as the model reads them."""
        x = self._numbers(given, number)
        x = x[:, None] if x.ndim == 1 and self.channels == 1 else x
        if x.ndim != 2 or x.shape[1] != self.channels or not len(x):
            step = "a number" if self.channels == 1 else f"a list of {self.channels} numbers"
            what = f"input {number} has the shape {list(x.shape)}"
            raise DataError(f"{what}, where a list of steps was wanted, each {step}")
        if len(x) > self.longest:
            raise DataError(
                f"input {number} has {len(x):,} steps, but this model reads at most {self.longest:,}; cut it"
            )
        if not np.isfinite(x).all():
            raise DataError(f"input {number} has a number that is not finite; leave such steps out")
        return self._as_learnt(x)

    def _numbers(self, given: Any, number: int) -> np.ndarray:
        what = "is no list of steps, each of equally many numbers"
        try:
            steps = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            steps, what = None, "is no JSON"
        with suppress(ValueError), np.errstate(over="ignore"):  # too large is not finite, which is told later
            found = np.asarray(steps)
            if found.dtype.kind in "biuf":
                return found.astype(np.float32)
        raise DataError(f"input {number} {what}; write for example {self._sketch()}")

    def _sketch(self) -> str:
        """The example as a person reads it, who needs no 88 zeros."""
        if self.channels <= FEW:
            return self.example("")
        return f"[[0, 0, …], [1, 1, …]], {self.channels} numbers a step"

    def _as_learnt(self, x: np.ndarray) -> np.ndarray:
        """Scaled and put into order, as the training data was."""
        data = self.recipe.data
        assert isinstance(data, SeriesData)
        times, plus = self._scale
        x = x * np.float32(times) + np.float32(plus)
        return x if data.permute is None else x[order_of(len(x), data.permute)]

    @property
    def _scale(self) -> Scale:
        data = self.recipe.data
        return AS_IT_IS if getattr(data, "made", None) else scale_of(data.train[0])

    def inputs(self, path: Path) -> Iterator[str]:
        """The x of a file of numbers."""
        for example in read_inputs(find(str(path))):
            yield json.dumps(example.tolist())

    def count(self, texts: Sequence[str]) -> list[int]:
        """Steps of each."""
        return [len(self.read(text, number)) for number, text in enumerate(texts, 1)]

    def check(self, text: str, number: int = 1) -> None:
        self.read(text, number)

    def example(self, text: str) -> str:
        """A short series, whatever the text."""
        return json.dumps([0, 1] if self.channels == 1 else [[0] * self.channels, [1] * self.channels])

    def draw(self, tokens: int, dice: torch.Generator) -> str:
        return json.dumps(torch.randint(2, (tokens, self.channels), generator=dice).tolist())


PIPELINE = Predictor


def _reply(found: Answer, top: int) -> Reply:
    match found:
        case Classified():
            best = _best(found.probabilities, top)
            text = "\t".join([found.label, *(f"{label} {share:.3f}" for label, share in best.items())])
            return Reply(text, {"label": found.label, "probabilities": best}, next(iter(best.values())))
        case Frame():
            text, best = " ".join(found.keys), _best(found.probabilities, top)
            sure = sum(log(max(share, 1 - share)) for share in found.probabilities.values())
            return Reply(text, {"keys": [*found.keys], "probabilities": best}, sure)
        case list():
            labels = [step.label for step in found]
            shares = [step.probabilities[step.label] for step in found]
            return Reply(" ".join(labels), {"labels": labels, "probabilities": shares}, sum(map(log, shares)))
    return Reply(f"{found:.6g}", {"number": found}, found)


def _best(shares: Mapping[str, float], top: int) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda pair: -pair[1])[:top])
