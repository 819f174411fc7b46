"""A text with masks in, the likeliest words for them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import Split
from regard.errors import ConfigError
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say
from regard.prepare.masked import documents
from regard.tasks.masked import Filled, fill, masked_ids, measure
from regard.view.capture import Trace


@dataclass(frozen=True)
class Filler(Asked):
    """An encoder without a head guesses nothing, and answers with vectors."""

    takes = frozenset(("top", "embed", "pooling"))

    @property
    def guesses(self) -> bool:
        return self.recipe.model.head != "none"  # type: ignore[attr-defined]

    def answers(self, texts: Sequence[Any], **how: Any) -> list[Any]:
        if not self.guesses:
            return list(self.embed(texts, **how))
        top = how.get("top", 5)
        return fill(self.model, self.tokenizer, texts, top=top, longest=self.longest)

    def replies(self, texts: Sequence[str], **how: Any) -> list[Reply]:
        return [_reply(filled) for filled in self.answers(texts, **how)] if self.guesses else self.vectors(texts)

    def example(self, text: str) -> str:
        return f"{text} <mask>" if self.guesses else text

    def check(self, text: str, number: int = 1) -> None:
        if self.guesses:
            masked_ids(self.tokenizer, text, number, self.longest)

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the text was read."""
        self.refuse_decoding(how)
        if not self.guesses:
            marks = self.tokenizer.marks
            return self.watched([marks.begin, *self.tokenizer.encode(text), marks.end], self.model, text, "")
        ids = masked_ids(self.tokenizer, text, 1, self.longest)
        (filled,) = self.answers([text], top=1)
        return self.watched(ids, self.model, f"{text} → {filled.text}", "")

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        self.refuse_decoding(how)
        if not self.guesses:
            raise ConfigError('model.head = "none": there is nothing to measure; fine-tune it with --train.begin')
        with self.place(split, files) as (recipe, folder, which):
            held = documents(recipe, folder, which, self.tokenizer, say)
            longest, tokens = recipe.data.longest, recipe.train.tokens
            return measure(self.model, self.tokenizer, held, recipe.task, longest=longest, tokens=tokens)


PIPELINE = Filler


def _reply(filled: Filled) -> Reply:
    """The text with the likeliest words; and for each mask all guesses."""
    guesses = [
        [{"piece": guess.piece, "probability": guess.probability, "text": guess.text} for guess in some]
        for some in filled.guesses
    ]
    told = ["  ".join(f"{guess.piece} {guess.probability:.3f}" for guess in some) for some in filled.guesses]
    text = "\t".join([filled.text, *told])
    return Reply(
        text, {"source": filled.source, "text": filled.text, "masks": guesses}, filled.guesses[0][0].probability
    )
