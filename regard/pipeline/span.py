"""A question and a passage in, the part of the passage that answers it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import Split
from regard.config.task import SpanTask
from regard.errors import ConfigError, DataError
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say
from regard.prepare.span import windows
from regard.tasks.span import Answered, answer, measure
from regard.view.capture import Trace


@dataclass(frozen=True)
class Answerer(Asked):
    """A question and its passage are given with a tab between them, or as a pair."""

    takes = frozenset(("top", "embed", "pooling", "threshold"))

    @property
    def settings(self) -> SpanTask:
        assert isinstance(self.recipe.task, SpanTask)
        return self.recipe.task

    def answers(self, texts: Sequence[Any], *, threshold: float | None = None, **how: Any) -> list[Answered]:
        """`threshold`: by how much better no answer must be than the best; the recipe's when left out."""
        self.refuse_decoding(how)
        pairs = [self.parts(text) for text in texts]
        return answer(self.model, self.tokenizer, pairs, self._with(threshold), longest=self.longest)

    def _with(self, threshold: float | None) -> SpanTask:
        if threshold is None:
            return self.settings
        if not self.settings.impossible:
            raise ConfigError("threshold: in this run every question has an answer (task.impossible); leave it out")
        return self.settings.model_copy(update={"threshold": threshold})

    def parts(self, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        question, _, passage = given.partition("\t")
        return question, passage

    def replies(self, texts: Sequence[str], *, top: int = 1, **how: Any) -> list[Reply]:
        return [_reply(text, found, top) for text, found in zip(texts, self.answers(texts, **how), strict=True)]

    def example(self, text: str) -> str:
        return f"{text or 'a'}\t{text or 'a'}"

    def check(self, text: str, number: int = 1) -> None:
        question, tab, passage = text.partition("\t")
        if not tab or not question.strip() or not passage.strip():
            raise DataError(f"input {number} is no question; write the question, a tab and the passage to look in")

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while question and passage were read."""
        self.refuse_decoding(how)
        self.check(text)
        question, passage = self.parts(text)
        marks, encode = self.tokenizer.marks, self.tokenizer.encode
        asked = [marks.begin, *encode(question)[: self.settings.question], marks.end, *marks.between]
        ids = [*asked, *encode(passage), marks.end]
        (found,) = self.answers([text])
        return self.watched(ids, self.model, f"{question} → {found.text}", "")

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        asked = dict(how)
        settings = self._with(asked.pop("threshold", None))
        self.refuse_decoding(asked)
        with self.place(split, files) as (recipe, folder, which):
            held = windows(recipe, folder, which, self.tokenizer, say)
            return measure(self.model, held, settings, tokens=recipe.train.tokens, progress=progress)


PIPELINE = Answerer


def _reply(source: str, found: Answered, top: int) -> Reply:
    every = (found, *found.others)[:top]
    text = found.text if top == 1 else "\n".join(f"{one.probability:.3f}\t{one.text}" for one in every)
    answers = [
        {"text": one.text, "start": one.start, "end": one.end, "score": one.score, "probability": one.probability}
        for one in every
    ]
    return Reply(text, {"source": source, "answers": answers}, found.score)
