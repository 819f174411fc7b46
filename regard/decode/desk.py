"""One step of a search with everything that belongs to it, on one device and always in the same place: tokens, state,
filters, choice, and what the host will be told. Nothing in it waits for anybody.

    tokens ─states─▶ hidden ─head─▶ logits ─filters─▶ choice ─▶ tokens of the next step
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.core.autoregressive import Autoregressive
from regard.core.state import Books, State
from regard.decode.chances import Chances
from regard.decode.filters import NEVER, chain, scaling
from regard.decode.line import Line, Penalty, stories
from regard.decode.prompt import Replay
from regard.decode.standing import Standing, tensors

WARM = 2  # steps before a capture, in which libraries and the allocator prepare themselves


class Desk:
    """All that a step reads and writes, in buffers that stay where they are."""

    def __init__(self, model: Autoregressive, line: Line, standing: Standing, every: int) -> None:
        self.model, self.standing = model, standing
        self.how, self.eos, self.filters = line.how, line.eos, line.filters
        sentences, keep, device = standing.sentences, line.how.keep, standing.clock.device
        self.tokens = torch.zeros(sentences * keep, 1, dtype=torch.long, device=device)
        self.first = torch.arange(sentences, device=device)[:, None] * keep  # row of each sentence
        self.totals = torch.zeros(sentences, keep, dtype=torch.float64, device=device)
        self.ranks = torch.zeros_like(self.totals)  # of the best that have ended, best first
        self.limit = torch.zeros(sentences, dtype=torch.long, device=device)
        self.penalty, self.costs = line.how.penalty, _costs(line.how.penalty, standing.capacity).to(device)
        self.going = torch.zeros(sentences, dtype=torch.bool, device=device)
        self.story = torch.full((sentences * keep, standing.capacity if line.filters else 0), -1, device=device)
        thrown = standing.capacity if line.dice else 0
        self.thrown = torch.zeros(sentences, thrown, dtype=torch.float64, device=device)
        shape = (max(every, WARM), sentences, line.how.columns, keep)
        self.told = torch.zeros(shape, dtype=torch.float64, device=device)
        self.news = torch.zeros(shape, dtype=torch.float64, device="cpu", pin_memory=device.type == "cuda")
        kernels = standing.kernels
        self.kernels = kernels if kernels is not None and kernels.suit(standing.seen, 1) else None
        self.replay: Replay = self.work

    def work(self) -> None:
        """One word more for everybody, finished or not."""
        kernels = self.standing.kernels
        layers = nullcontext() if kernels is None else kernels.narrowed(self.model, len(self.tokens))
        with layers, sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # a fused one that adds to scores
            hidden, state = self.model.states(self.tokens, self.standing.state())
            self.settle(hidden[:, -1], tensors(state.past))

    def settle(self, hidden: Tensor, past: Sequence[Tensor]) -> None:
        """From the last hidden states to the tokens of the next step, with all that is to be kept."""
        logits = self.model.head.logits(hidden)
        if self.kernels is None or self.filters or not self.how.plain:
            self._choose(logits, past)
        else:
            books = self.tokens, self.totals, self.told, self.going, self.limit, self.standing.clock
            self.kernels.say(logits, Books(*books), self.eos)
            self.standing.follow(past, None)

    def _choose(self, logits: Tensor, past: Sequence[Tensor]) -> None:
        quick = self.kernels.likeliest if self.kernels is not None and not any(map(scaling, self.filters)) else None
        thrown = self.thrown.index_select(1, self.standing.said)[:, 0] if self.thrown.numel() else None
        chances = Chances(logits, self._bend, quick)
        words, parents, totals, ended, told = self.how.choose(chances, self.totals, thrown, self.eos)
        rows = None if parents is None else (self.first + parents).flatten()
        if self.filters:
            story = self.story if rows is None else self.story.index_select(0, rows)
            self.story.copy_(torch.cat([story[:, 1:], words.view(-1, 1)], 1))
        self.tokens.copy_(words.view(-1, 1))
        self.totals.copy_(totals)
        self.told.index_copy_(0, self.standing.slot, told[None])
        self.standing.follow(past, rows)
        cost = self.costs.index_select(0, self.standing.said)  # of as many words as they have now
        ranks = torch.cat([self.ranks, ended / cost], 1).sort(1, descending=True).values
        self.ranks.copy_(ranks[:, : self.how.keep])
        able = totals[:, :1] / cost > self.ranks[:, -1:]
        self.going.logical_and_(able[:, 0] & (self.standing.said < self.limit))

    def enter(self, state: State, lines: Sequence[Line], rows: Tensor, prompt: Tensor) -> None:
        """Lines that have said nothing but a prompt of one token, or their first words already. `rows` of the state are
        theirs, the last of them again and again where there are fewer lines than places."""
        keep, said = self.how.keep, lines[0].said
        each = [*lines, *[lines[-1]] * (len(rows) - len(lines))]
        alive = [[*line.alive, *[(NEVER, 0, -1)] * (keep - len(line.alive))] for line in each]  # at first there is one
        self.standing.enter(state, rows, said)
        columns = [
            [*(total for total, _, _ in some), *(word for _, _, word in some), *_ranks(line), line.limit]
            for some, line in zip(alive, each, strict=True)
        ]
        totals, words, ranks, limit = (
            torch.tensor(columns, dtype=torch.float64).to(rows.device).split([keep, keep, keep, 1], 1)
        )  # in one piece: each way to the device takes its time
        self.tokens.copy_(words.reshape(-1, 1) if said else prompt.index_select(0, rows).repeat_interleave(keep, 0))
        self.totals.copy_(totals)
        self.ranks.copy_(ranks)
        self._rank_by(lines[0].how.penalty)
        self.limit.copy_(limit[:, 0])
        self.going.copy_(torch.arange(len(rows), device=rows.device) < len(lines))
        if self.filters:
            self.story.fill_(-1)
            if said:
                self.story[:, -1:] = stories(each, rows.device)
        if self.thrown.numel():
            thrown = torch.zeros(self.thrown.shape, dtype=torch.float64)
            for place, line in enumerate(lines):  # all that it may need, in the order in which it would throw them
                thrown[place, said : line.limit] = torch.rand(
                    line.limit - said, generator=line.dice, dtype=torch.float64
                )
            self.thrown.copy_(thrown)

    def take(self, other: Desk, sentences: Tensor, going: int) -> None:
        """These sentences of another desk, of which the first are going."""
        rows = (self.first[:1].new_tensor(range(self.how.keep)) + sentences[:, None] * self.how.keep).flatten()
        self.standing.take(other.standing, sentences)
        self._rank_by(other.penalty)
        for name in ("totals", "ranks", "limit", "thrown"):
            getattr(self, name).copy_(getattr(other, name).index_select(0, sentences))
        for name in ("tokens", "story"):
            getattr(self, name).copy_(getattr(other, name).index_select(0, rows))
        self.going.copy_(torch.arange(len(sentences), device=sentences.device) < going)

    def go(self, steps: int) -> None:
        """So many words more. Nobody waits for them."""
        self.standing.slot.zero_()
        for _ in range(steps):
            self.replay()

    def look(self, steps: int) -> tuple[Tensor, list[bool]]:
        """What the last steps have told, until somebody looks again, and who is still going: here the host waits, once
        for both."""
        news = self.news[:steps].copy_(self.told[:steps], non_blocking=True)
        return news, self.going.tolist()

    def _rank_by(self, penalty: Penalty | None) -> None:
        if penalty is not self.penalty:
            self.penalty = penalty
            self.costs.copy_(_costs(penalty, self.standing.capacity))

    def _bend(self, scores: Tensor) -> Tensor:
        return chain(self.filters, scores, self.story)


def _costs(penalty: Penalty | None, longest: int) -> Tensor:
    """What the log-probability of so many words is divided by, and of one more."""
    lengths = range(1, longest + 2)
    return torch.tensor([1.0, *(1.0 if penalty is None else penalty(n) for n in lengths)], dtype=torch.float64)


def _ranks(line: Line) -> list[float]:
    found = line.ranks
    return [*found, *[NEVER] * (line.how.keep - len(found))]
