"""A text in, its continuation out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import DecodeConfig, Split
from regard.config.data import StreamData
from regard.core.autoregressive import Autoregressive
from regard.data.stream import Stream
from regard.errors import DataError
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say
from regard.prepare.language import own, stream
from regard.tasks.language import Choice, continuations, generate, measure, score, streamed
from regard.tasks.rewrite import Answer
from regard.view.capture import Trace


@dataclass(frozen=True)
class Writer(Asked):
    model: Autoregressive

    takes = frozenset((*DecodeConfig.model_fields, "embed", "pooling"))

    def answers(self, texts: Sequence[Any], **how: Any) -> list[str]:
        """What follows each text; keywords as in the recipe's [decode]."""
        return [answer.texts[0] for answer in self.answer(texts, **how)]

    def answer(self, texts: Sequence[str], *, progress: Progress | None = None, **how: Any) -> list[Answer]:
        """Continuations with their n-best lists and scores."""
        return generate(
            self.model, self.tokenizer, texts, self.decoding(**how), before=self.before, progress=progress
        )  # fmt: skip

    def stream(self, text: str, **how: Any) -> Iterator[str]:
        """The continuation, piece by piece while it is written."""
        return streamed(self.model, self.tokenizer, text, self.decoding(**how), before=self.before)

    def ask(self, texts: Sequence[str], *, embed: bool = False, pooling: str = "mean", **how: Any) -> list[Reply]:
        self.refuse_unknown(how)
        if embed:
            return self.vectors(texts, pooling)
        return [_reply(answer, several="nbest" in how) for answer in self.answer(texts, **how)]

    def score(self, texts: Sequence[str]) -> list[list[float]]:
        """Log-probability of each token of given texts."""
        return score(self.model, self.tokenizer, texts, before=self.before)

    def choose(self, context: str, choices: Sequence[str], *, normalise: bool = True) -> list[Choice]:
        """How likely each of some continuations is, a token on average."""
        return continuations(self.model, self.tokenizer, context, choices, normalise=normalise, before=self.before)

    @property
    def before(self) -> list[int]:
        """What stands before a text: the end of another, where texts are documents; a file is cut anywhere."""
        data = self.recipe.data
        assert isinstance(data, StreamData)
        return [] if data.documents == "file" and data.made is None else [self.tokenizer.marks.end]

    def check(self, text: str, number: int = 1) -> None:
        length = len(self.before) + len(self.tokenizer.encode(text))
        if self.model.longest is not None and length > self.model.longest:
            raise DataError(
                f"input {number} has {length} tokens, but this model reads at most {self.model.longest}; "
                "write a shorter prompt"
            )

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the text was read and its continuation was written."""
        (answer,) = self.answer([text], **how)
        best = answer.hypotheses[0].tokens
        ids = [*(self.before or [self.tokenizer.marks.end]), *self.tokenizer.encode(text), *best]
        if self.model.longest is not None:
            ids = ids[: self.model.longest]
        (last,) = self.tokenizer.tokens(ids[-1:])
        return self.watched(
            ids[:-1], lambda tokens: self.model(None, None, tokens), f"{text} → {answer.texts[0]}", last
        )  # fmt: skip

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        self.refuse_decoding(how)
        with self.place(split, files) as (recipe, folder, which):
            data = recipe.data
            assert isinstance(data, StreamData)
            if own(data, which):
                held = stream(recipe, folder, which, self.tokenizer, say)
            else:
                _, held = Stream.open(folder / "data" / "train").split(data.held)
            return measure(
                self.model, self.tokenizer, held,
                window=data.longest, tokens=recipe.train.tokens, apart=data.apart,
            )  # fmt: skip


PIPELINE = Writer


def _reply(answer: Answer, several: bool) -> Reply:
    found = list(zip(answer.texts, answer.hypotheses, strict=True))
    answers = [{"text": text, "score": h.score, "logprob": h.logprob, "finished": h.finished} for text, h in found]
    text = "\n".join(f"{h.score:.4f}\t{text}" for text, h in found) if several else answer.source + answer.texts[0]
    return Reply(text, {"source": answer.source, "answers": answers}, answer.hypotheses[0].score)
