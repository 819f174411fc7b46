"""A text with masks in, the likeliest words for them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import Split
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say
from regard.prepare.masked import documents
from regard.tasks.masked import Filled, fill, masked_ids, measure
from regard.view.capture import Trace


@dataclass(frozen=True)
class Filler(Asked):
    takes = frozenset(("top", "embed", "pooling"))

    def answers(self, texts: Sequence[Any], **how: Any) -> list[Filled]:
        top = how.get("top", 5)
        return fill(self.model, self.tokenizer, texts, top=top, longest=self.longest)

    def ask(
        self, texts: Sequence[str], *, top: int = 5, embed: bool = False, pooling: str = "mean", **how: Any
    ) -> list[Reply]:
        self.refuse_unknown(how)
        return self.vectors(texts, pooling) if embed else [_reply(one) for one in self.answers(texts, top=top)]

    def example(self, text: str) -> str:
        return f"{text} <mask>"

    def check(self, text: str, number: int = 1) -> None:
        masked_ids(self.tokenizer, text, number, self.longest)

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the text was read."""
        self.refuse_decoding(how)
        ids = masked_ids(self.tokenizer, text, 1, self.longest)
        (filled,) = self.answers([text], top=1)
        return self.watched(ids, self.model, f"{text} → {filled.text}", "")

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        self.refuse_decoding(how)
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
