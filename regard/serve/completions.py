"""Going on with a text in the shape of OpenAI's /v1/completions, whole or piece by piece."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from regard.decode import Hypothesis
from regard.decode.engine import Ask
from regard.pipeline.language import Writer
from regard.serve.front import aside, place
from regard.serve.models import Model
from regard.serve.queue import Done, Ticket, Worker, Writing
from regard.serve.refusal import Refusal
from regard.serve.schema import COLD, MOST_INPUTS, Completions
from regard.serve.spelling import Spelling, Until
from regard.serve.writing import Question, check_work, question


@dataclass(frozen=True)
class Piece:
    choice: int
    text: str


class Teller:
    """Spells an answer while it is written, and ends it at a stop."""

    def __init__(self, ticket: Ticket, choice: int, spelling: Spelling, stops: Sequence[str], aloud: bool) -> None:
        self.ticket, self.choice, self.aloud = ticket, choice, aloud
        self.spelling, self.until = spelling, Until(stops)
        self.said, self.tokens = "", 0

    def hear(self, tokens: Sequence[int]) -> bool:
        self.tokens += len(tokens)
        self._say(self.until.pass_on(self.spelling.add(tokens)))
        return self.until.over

    def end(self) -> str:
        """What was still held back, once nothing more can come."""
        if self.until.over:
            return ""
        last = self.until.pass_on(self.spelling.rest())
        last += "" if self.until.over else self.until.rest()
        self.said += last
        return last

    def _say(self, text: str) -> None:
        self.said += text
        if text and self.aloud:
            self.ticket.tell(Piece(self.choice, text))


class Completing:
    """One request: its choices are numbered prompt by prompt, draw by draw."""

    def __init__(self, asked: Completions, model: Model, pipeline: Writer, worker: Worker) -> None:
        self.asked, self.model, self.pipeline, self.worker = asked, model, pipeline, worker
        self.stream = bool(asked.stream)
        self.id, self.created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self.prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        self.stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        if asked.stream_options is not None and not self.stream:
            raise Refusal(422, "invalid", "stream_options: only a stream uses it; write stream = true, or leave it out")
        if (n := len(self.prompts) * (asked.n or 1)) > MOST_INPUTS:
            raise Refusal(422, "too_many", f"{n} answers were asked for at once; ask for at most {MOST_INPUTS}")

    async def whole(self, request: Request) -> dict[str, Any]:
        async with place(request, self.worker) as ticket:
            await self._ask(ticket)
            found = await ticket.done()
        for teller in self.tellers:
            if teller is not None:
                teller.end()
        return {**self._frame(), "choices": self._choices(found), "usage": self._usage(found)}

    async def pieces(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        """Events, the last of each choice with the reason why it ended."""
        async with place(request, self.worker) as ticket:
            await self._ask(ticket)
            while not isinstance(said := await ticket.next(), Done):
                yield {**self._frame(), "choices": [_choice(said.choice, said.text, None)]}
        for number, ((hypotheses, _), teller) in enumerate(zip(self._written(said.value), self.tellers, strict=True)):
            assert teller is not None
            yield {**self._frame(), "choices": [_choice(number, teller.end(), _reason(teller, hypotheses))]}
        if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
            yield {**self._frame(), "choices": [], "usage": self._usage(said.value)}

    async def _ask(self, ticket: Ticket) -> None:
        self.questions = await aside(sum(map(len, self.prompts)), self._questions)
        asks = [(question, ask) for question in self.questions for ask in self._asks(question)]
        check_work([ask for _, ask in asks], self.worker.rows)
        self.of = [question for question, _ in asks]
        heard = self.stream or self.stops
        self.tellers = [
            Teller(ticket, n, Spelling(self.pipeline.tokenizer, ask.prompt), self.stops, self.stream) if heard else None
            for n, (_, ask) in enumerate(asks)
        ]
        self.worker.put(Writing(ticket, [ask for _, ask in asks], self.tellers))

    def _questions(self) -> list[Question]:
        asked = self.asked
        how: dict[str, Any] = {"longest": asked.max_tokens or 16}
        warmth = 1.0 if asked.temperature is None else asked.temperature
        if warmth < COLD:
            how |= {"sample": False, "beam": 1, "nbest": 1, "expand": None}
        else:
            seed = secrets.randbits(62) if asked.seed is None else asked.seed
            how |= {"sample": True, "temperature": warmth, "top_p": asked.top_p or 1.0, "seed": seed}
            how |= {"nbest": asked.n or 1}
        settings = self.pipeline.decoding(**how)
        return [question(self.pipeline, text, settings, number=n) for n, text in enumerate(self.prompts, 1)]

    def _asks(self, one: Question) -> list[Ask]:
        """The likeliest answer is the same however often it is asked for."""
        return one.asks if one.how.sample else one.asks * (self.asked.n or 1)

    def _written(self, found: list[list[Hypothesis]]) -> list[tuple[list[Hypothesis], Question]]:
        return list(zip(found, self.of, strict=True))

    def _frame(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model.name}

    def _choices(self, found: list[list[Hypothesis]]) -> list[dict[str, Any]]:
        told = []
        for number, ((best, asked), teller) in enumerate(zip(self._written(found), self.tellers, strict=True)):
            text = asked.spell(best[0].tokens) if teller is None else teller.said
            told.append(_choice(number, text, _reason(teller, best)))
        return told

    def _usage(self, found: list[list[Hypothesis]]) -> dict[str, int]:
        read = sum(one.read for one in self.questions)
        wrote = sum(
            len(best[0].tokens) if best else teller.tokens if teller else 0
            for best, teller in zip(found, self.tellers, strict=True)
        )
        return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def _choice(number: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": number, "logprobs": None, "finish_reason": reason}


def _reason(teller: Teller | None, hypotheses: list[Hypothesis]) -> str:
    stopped = teller is not None and teller.until.over
    return "stop" if stopped or hypotheses[0].finished else "length"
