"""A text or a pair in, a label or a number out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import Split
from regard.config.data import LabelledData
from regard.data.layout import lay_out
from regard.data.text import shortened
from regard.errors import DataError
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say
from regard.prepare.classify import question_of, readings
from regard.tasks.classify import Classified, Classify, Question, classify, rate
from regard.view.capture import Trace


@dataclass(frozen=True)
class Classifier(Asked):
    """Texts of a pair are given with a tab between them, or as a list."""

    takes = frozenset(("top", "embed", "pooling"))

    @property
    def question(self) -> Question:
        return question_of(self.recipe, self.tokenizer)

    def answers(self, texts: Sequence[Any], **how: Any) -> list[Any]:
        """Labels with their probabilities, or numbers."""
        self.refuse_decoding(how)
        for number, text in enumerate(texts, 1):
            self.check(text, number)
        examples = [self.parts(text) for text in texts]
        ask = rate if self.question.kind == "number" else classify
        return ask(self.model, self.tokenizer, self.question, examples)

    def parts(self, given: Any) -> Any:
        return given.split("\t") if isinstance(given, str) else given

    def replies(self, texts: Sequence[str], *, top: int = 5, **how: Any) -> list[Reply]:
        return [_reply(text, found, top) for text, found in zip(texts, self.answers(texts, **how), strict=True)]

    def example(self, text: str) -> str:
        return "\t".join([text or "a"] * self.question.texts)

    def check(self, text: Any, number: int = 1) -> None:
        parts, wanted = self.parts(text), self.question.texts
        if len(parts) != wanted:
            form = "one text without a tab" if wanted == 1 else f"{wanted} texts with a tab between them"
            have = f"{len(parts)} text{'s'[: len(parts) > 1]}"
            raise DataError(f"input {number} has {have}; this model was trained on {form}")
        if not {i for ids in self.tokenizer.encode_many(parts) for i in ids} - {self.tokenizer.marks.unknown}:
            like = "write texts like those that it was trained on"
            if not "".join(parts).strip():
                raise DataError(f"input {number} is empty, and there is nothing to tell; {like}")
            raise DataError(
                f"every token of input {number} is unknown to this model: {shortened(' '.join(parts))}; {like}"
            )

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the text, or the first of its sequences, was read."""
        self.refuse_decoding(how)
        self.check(text)
        ((reading, *_),) = lay_out(self.tokenizer, [self.parts(text)], self.question.layout)
        (found,) = self.ask([text])
        if "head" in type(self.recipe.model).model_fields:
            return self.watched(reading.tokens, self.model, f"{text} → {found.text}", "")
        read = lambda tokens: self.model(None, None, tokens)  # noqa: E731
        return self.watched(reading.tokens, read, f"{text} → {found.text}", found.json.get("label", found.text))

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        self.refuse_decoding(how)
        with self.place(split, files) as (recipe, folder, which):
            assert isinstance(recipe.data, LabelledData)
            held = readings(recipe, folder, which, self.tokenizer, say)
            task = Classify(
                self.question, held, {which: held}, tokens=recipe.train.tokens, seed=0, task=recipe.task
            )  # fmt: skip
            return task.evaluate(self.model, which)


PIPELINE = Classifier


def _reply(source: str, found: Classified | float, top: int) -> Reply:
    if isinstance(found, float):
        return Reply(f"{found:.4f}", {"source": source, "number": found}, found)
    best = sorted(found.probabilities.items(), key=lambda pair: -pair[1])[:top]
    text = "\t".join([found.label, *(f"{label} {share:.3f}" for label, share in best)])
    return Reply(text, {"source": source, "label": found.label, "probabilities": dict(best)}, best[0][1])
