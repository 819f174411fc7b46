"""From a text to what an engine is asked, and back: the answers are those of `rewrite` and `generate`, whoever else is
in the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.config import DecodeConfig
from regard.data.tokenizer import Tokenizer
from regard.decode import Hypothesis
from regard.decode.engine import Ask
from regard.decode.filters import limits, shapes
from regard.decode.line import Search
from regard.decode.search import PENALTIES, Beam, Greedy, Sample
from regard.errors import ConfigError
from regard.pipeline.base import Pipeline
from regard.pipeline.language import Writer
from regard.pipeline.rewrite import Rewriter
from regard.pipeline.searched import once
from regard.serve.refusal import Refusal
from regard.serve.spelling import added
from regard.tasks.continuing import begun
from regard.tasks.rewrite import NOTHING, encode_sources
from regard.tasks.searching import room, seed_of

MOST_TOKENS = 1 << 18  # that one request may make the engine write, over all rows and inputs


@dataclass(frozen=True)
class Question:
    """One text, as the engine is asked: once, or once for each draw; not at all where nothing is asked."""

    text: str
    asks: list[Ask]
    read: int  # tokens of the text, with its marks
    how: DecodeConfig
    spell: Callable[[Sequence[int]], str]

    def best(self, found: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
        """Of what came back for each ask, as many as were wanted, the best first."""
        if not self.asks:
            return [NOTHING]
        if self.how.sample:
            return sorted((drawn for (drawn,) in found), key=lambda h: -h.score)
        return list(found[0][: self.how.nbest])

    def json(self, found: Sequence[Sequence[Hypothesis]]) -> dict[str, Any]:
        spelt = [(self.spell(h.tokens), h) for h in self.best(found)]
        answers = [
            {"text": text, "score": _finite(h.score), "logprob": _finite(h.logprob), "finished": h.finished}
            for text, h in (spelt if self.how.sample else once(spelt))
        ]
        return {"source": self.text, "answers": answers}


def writes(pipeline: Pipeline) -> bool:
    return isinstance(pipeline, Rewriter | Writer)


def question(pipeline: Pipeline, text: str, how: DecodeConfig, *, prefix: str = "", number: int = 1) -> Question:
    """Checked as `regard predict` checks it; `number` is which input of the request it is."""
    if how.coverage:
        raise ConfigError(f"coverage = {how.coverage}: a server searches without it; write 0 in the run's [decode]")
    if isinstance(pipeline, Rewriter):
        return _rewriting(pipeline, text, how, prefix, number)
    assert isinstance(pipeline, Writer)
    return _going_on(pipeline, text, how, number)


def _rewriting(pipeline: Rewriter, text: str, how: DecodeConfig, prefix: str, number: int) -> Question:
    tokenizers, most = pipeline.tokenizers, pipeline.model.longest
    (ids,) = encode_sources(tokenizers, [text], pipeline.longest, first=number)
    marks, written = tokenizers.target.marks, tokenizers.target
    frame = len(tokenizers.source.marks.source([]))
    asks = _asks(
        written, how, ids, source=ids, prompt=[marks.begin], prefix=[*marks.opening, *written.encode(prefix)],
        limit=min(len(marks.opening) + room(how, len(ids) - frame), most or math.inf),
    )  # fmt: skip
    return Question(text, asks if len(ids) > frame else [], len(ids), how, written.decode)


def _going_on(pipeline: Writer, text: str, how: DecodeConfig, number: int) -> Question:
    pipeline.check(text, number)
    tokenizer, most = pipeline.tokenizer, pipeline.model.longest
    ids = begun(pipeline.model, tokenizer, pipeline.before, tokenizer.encode(text))
    limit = min(room(how, len(ids)), math.inf if most is None else most - len(ids) + 1)
    asks = _asks(tokenizer, how, ids, source=None, prompt=ids, prefix=[], limit=limit)
    return Question(text, asks, len(ids), how, lambda tokens: added(tokenizer, ids, tokens))


def _asks(
    tokenizer: Tokenizer,
    how: DecodeConfig,
    ids: list[int],
    *,
    source: list[int] | None,
    prompt: list[int],
    prefix: list[int],
    limit: float,
) -> list[Ask]:
    marks = tokenizer.marks
    filters = (*limits(how, eos=marks.end, specials=marks.unsayable), *(shapes(how) if how.sample else ()))
    return [
        Ask(source=source, prompt=prompt, limit=int(limit), how=search, filters=filters, prefix=prefix, eos=marks.end)
        for search in _searches(how, ids)
    ]


def _searches(how: DecodeConfig, ids: list[int]) -> list[Search]:
    if how.sample:
        return [Sample(seed_of(how.seed, draw, ids)) for draw in range(how.nbest)]
    if how.beam == 1 and how.nbest == 1 and how.expand in (None, 1):
        return [Greedy()]
    return [Beam(max(how.beam, how.nbest), expand=how.expand, penalty=PENALTIES[how.penalty](how.alpha))]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def check_work(asks: Sequence[Ask], rows: int) -> None:
    """A request that would never fit is refused, and so is one that would keep everybody waiting."""
    widest = max((ask.how.keep for ask in asks), default=0)
    if widest > rows:
        raise Refusal(422, "too_much", f"beam: {widest} hypotheses, and this server carries {rows}; ask for fewer")
    most = sum(ask.how.keep * ask.limit for ask in asks)
    if most > MOST_TOKENS:
        what = f"{most:,} tokens might be written, over all inputs and hypotheses, and {MOST_TOKENS:,} are allowed"
        raise Refusal(422, "too_much", f"{what}; ask for fewer or shorter answers, or a smaller beam")
