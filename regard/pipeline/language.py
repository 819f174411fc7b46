"""A text in, its continuation out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.config import DecodeConfig, Split
from regard.config.data import StreamData
from regard.config.task import Counted, LanguageTask
from regard.core.autoregressive import Autoregressive
from regard.data.stream import Stream
from regard.data.text import raw_lines
from regard.decode.record import Record
from regard.errors import DataError
from regard.pipeline.asked import Asked
from regard.pipeline.base import Progress, Reply, Say, several
from regard.pipeline.searched import listed, searched
from regard.prepare.language import check_counted, own, reading, stream
from regard.tasks.continuing import Choice, begun, by_shots, continuations, few_shot, generate, score, streamed
from regard.tasks.language import measure
from regard.tasks.rewrite import Answer, spelt
from regard.view.capture import Trace


@dataclass(frozen=True)
class Writer(Asked):
    model: Autoregressive

    takes = frozenset((*DecodeConfig.model_fields, "embed", "pooling", "choices", "shots"))

    def answers(self, texts: Sequence[Any], **how: Any) -> list[str]:
        """What follows each text; keywords as in the recipe's [decode]."""
        return [answer.texts[0] for answer in self.answer(texts, **how)]

    def answer(
        self, texts: Sequence[str], *, progress: Progress | None = None, record: Record | None = None, **how: Any
    ) -> list[Answer]:
        """Continuations with their n-best lists and scores."""
        return generate(
            self.model, self.tokenizer, texts, self.decoding(**how),
            before=self.before, progress=progress, record=record,
        )  # fmt: skip

    def stream(self, text: str, **how: Any) -> Iterator[str]:
        """The continuation, piece by piece while it is written."""
        return streamed(self.model, self.tokenizer, text, self.decoding(**how), before=self.before)

    def replies(self, texts: Sequence[str], *, choices: Sequence[str] = (), shots: str = "", **how: Any) -> list[Reply]:
        texts = [self.prompt(text, shots) for text in texts]
        if choices:
            return [_ranked(text, self.choose(f"{text} ", choices)) for text in texts]
        drawn = self.decoding(**how).sample
        return [_reply(answer, several="nbest" in how, drawn=drawn) for answer in self.answer(texts, **how)]

    def pieces(self, text: str, **how: Any) -> Iterator[str]:
        if how.keys() & {"embed", "choices", "nbest"}:
            yield from super().pieces(text, **how)
            return
        prompt = self.prompt(text, how.pop("shots", ""))
        written = self.stream(prompt, **how)
        first = next(written, "")  # before anything is said, since it may be refused
        yield prompt + first
        yield from written

    def prompt(self, text: str, shots: str = "") -> str:
        """A text behind demonstrations, where a file of them is named: question, tab and answer on each line."""
        return few_shot(list(read_shots(Path(shots))), text) if shots else text

    def score(self, texts: str | Sequence[str]) -> list[list[float]]:
        """Log-probability of each token of given texts."""
        return score(self.model, self.tokenizer, several(texts), before=self.before)

    def choose(self, context: str, choices: str | Sequence[str], *, normalise: bool = True) -> list[Choice]:
        """How likely each of some continuations is, a token on average."""
        return continuations(
            self.model, self.tokenizer, context, several(choices), normalise=normalise, before=self.before
        )

    @property
    def before(self) -> list[int]:
        """What stands before a text: the end of another, where texts are documents; a file is cut anywhere."""
        data = self.recipe.data
        assert isinstance(data, StreamData)
        return [] if data.documents in ("file", "spelt") and data.made is None else [self.tokenizer.marks.end]

    def check(self, text: str, number: int = 1) -> None:
        (ids,) = spelt(self.tokenizer, [text])
        length = len(begun(self.model, self.tokenizer, self.before, ids))
        if self.model.longest is not None and length > self.model.longest:
            raise DataError(
                f"input {number} has {length} tokens, but this model reads at most {self.model.longest}; "
                "write a shorter prompt"
            )

    def look(self, text: str, **how: Any) -> Trace:
        """What every attention looked at while the text was read and its continuation was written."""
        record = Record(self.tokenizer.marks.end)
        (answer,) = self.answer([text], record=record, **how)
        best = answer.hypotheses[0]
        start = [i for i in (self.before or [self.tokenizer.marks.end]) if i < self.model.words.num_embeddings]
        prompt = [*start, *self.tokenizer.encode(text)]
        ids = [*prompt, *best.tokens]
        if self.model.longest is not None:
            ids = ids[: self.model.longest]
        (last,) = self.tokenizer.tokens(ids[-1:])
        trace = self.watched(
            ids[:-1], lambda tokens: self.model(None, None, tokens), f"{text} → {answer.texts[0]}", last
        )  # fmt: skip
        return replace(
            trace, score=best.score, given=len(prompt) - 1, tree=searched(record, best, self.tokenizer)
        )  # fmt: skip

    def measure(
        self, split: Split, files: Sequence[str], how: Mapping[str, Any], *, say: Say, progress: Progress
    ) -> dict[str, float]:
        asked = dict(how)
        task = self._counting(asked.pop("counted", None))
        self.refuse_decoding(asked)
        with self.place(split, files) as (recipe, folder, which):
            recipe, data = recipe.model_copy(update={"task": task}), recipe.data
            assert isinstance(data, StreamData)
            check_counted(task, data, "leave it out, or ask a run whose documents are lines")
            if own(data, which):
                held = stream(recipe, folder, which, self.tokenizer, say)
            else:
                _, held = Stream.open(folder / "data" / "train").split(data.held)
            found = measure(self.model, self.tokenizer, held, tokens=recipe.train.tokens, **reading(recipe))
        if data.made == "maps" and not files:
            shots = by_shots(self.model, self.tokenizer, split=split)
            found |= {f"shots {number}": right for number, right in shots.items()}
        return found

    def _counting(self, counted: Counted | None) -> LanguageTask:
        task = self.recipe.task
        assert isinstance(task, LanguageTask)
        return task if counted is None else LanguageTask(**{**task.model_dump(), "counted": counted})


PIPELINE = Writer


def _ranked(text: str, found: Sequence[Choice]) -> Reply:
    best = sorted(found, key=lambda choice: -choice.score)
    told = "\n".join(f"{choice.score:.4f}\t{choice.text}" for choice in best)
    rows = [{"text": one.text, "score": one.score, "logprob": one.logprob} for one in best]
    return Reply(told, {"source": text, "choices": rows}, best[0].score)


def read_shots(path: Path) -> Iterator[tuple[str, str]]:
    """Demonstrations: a question, a tab and its answer on each line."""
    for number, raw in enumerate(raw_lines(path), 1):
        question, tab, answer = raw.partition(b"\t")
        if not tab:
            raise DataError(f"{path}, line {number}: no tab; write a question, a tab and its answer")
        try:
            yield question.decode(), answer.decode()
        except UnicodeDecodeError:
            raise DataError(f"{path}, line {number}: not UTF-8; save it as UTF-8") from None


def _reply(answer: Answer, *, several: bool, drawn: bool) -> Reply:
    found = listed(answer, drawn=drawn)
    alone = answer.source + answer.texts[0]
    text = "\n".join(f"{one['score']:.4f}\t{one['text']}" for one in found) if several else alone
    return Reply(text, {"source": answer.source, "answers": found}, answer.hypotheses[0].score)
