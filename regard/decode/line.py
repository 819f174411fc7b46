"""One answer in the making: the hypotheses that are still being written, those that have ended, and when it is done.

Whoever searches proposes how the hypotheses go on; a line keeps the books. Lines of a batch never meet.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decode.filters import NEVER, Filter

Penalty = Callable[[int], float]  # length -> what the log-probability is divided by


@dataclass(frozen=True)
class Hypothesis:
    """One answer. `rows[t]` is the row of the batch in which its token t was chosen: its ancestry,
    for whoever watched."""

    tokens: tuple[int, ...]  # without the end mark
    score: float  # what the search ranked by
    logprob: float  # the model's own, the end mark included
    finished: bool  # False: cut off at the limit
    rows: tuple[int, ...]


# How a hypothesis could go on: its summed log-probability (-inf: there is none), which of its line's it follows, and
# the word that it adds.
Candidate = tuple[float, int, int]
Proposal = tuple[Sequence[Candidate], Sequence[Candidate]]  # those that end, those that go on


class Covered:
    """How much of each key a line's hypotheses have read: weight · Σ_keys log min(Σ_steps attention, 1) rewards reading
    all of them, after Wu et al. 2016."""

    def __init__(self, weight: float, real: Tensor) -> None:
        self.weight, self.real = weight, real
        self.read = torch.zeros(1, len(real), device=real.device)  # (hypotheses, K)

    def bonus(self, parent: int) -> float:
        return float(self.weight * self.read[parent].clamp(1e-9, 1.0).log().masked_fill(~self.real, 0.0).sum())

    def see(self, attended: Tensor) -> None:
        """(hypotheses, K): what each has just looked at."""
        self.read = self.read + attended

    def follow(self, parents: Sequence[int]) -> None:
        self.read = self.read[list(parents)]


class Search:
    """A way to search, as a value. From the logits of lines that search alike to what becomes of each of them."""

    keep: int = 1  # hypotheses, and so rows, of a line
    penalty: Penalty | None = None

    @property
    def alike(self) -> tuple[object, ...]:
        """What two ways to search have in common if their lines can choose at once."""
        return (type(self),)

    def dice(self) -> torch.Generator | None:
        """What a line of its own throws."""
        return None

    def propose(self, logits: Tensor, own: Tensor, lines: Sequence[Line]) -> list[Proposal]:
        """(n · w, V): what n lines may say next; `own` are the model's log-probabilities, which no filter bends."""
        raise TypeError(f"{type(self).__name__} must define propose")


class Line:
    """Up to `keep` hypotheses of one answer, equally long; each has a row of the batch, and they are neighbours."""

    def __init__(
        self,
        how: Search,
        *,
        eos: int,
        limit: int,
        filters: tuple[Filter, ...] = (),
        prefix: Sequence[int] = (),
    ) -> None:
        self.how, self.eos, self.limit, self.filters, self.prefix = how, eos, limit, filters, prefix
        self.covered: Covered | None = None
        self.alike, self.dice = (how.alike, eos, filters), how.dice()
        self.said = 0  # words of every hypothesis
        self.alive: Sequence[Candidate] = [(0.0, 0, -1)]  # how each hypothesis came about; at first, by nothing
        self.stories = [array("q")]
        self.ancestors = [array("q")]
        self.ended: list[Hypothesis] = []
        self.going = True

    @property
    def forced(self) -> int:
        """The next word of the prefix, where it is not over; -1 else."""
        return self.prefix[self.said] if self.said < len(self.prefix) else -1

    @property
    def best(self) -> list[Hypothesis]:
        """At most `keep` answers, best first; what the limit cut off ranks after whatever has ended by itself."""
        return sorted(self.ended, key=lambda h: (h.finished, h.score), reverse=True)[: self.how.keep]

    def follow(self, ended: Sequence[Candidate], alive: Sequence[Candidate], row: int) -> None:
        """Some hypotheses end, the others become one word longer. `row` of the batch is the line's first.

        It is done when `keep` have ended, when none can go on, or at the limit.
        """
        for total, parent, _ in ended:
            rows = (*self.ancestors[parent], row + parent)
            self.ended.append(self._rank(self.stories[parent], total, True, rows, parent))
        self.said += 1
        self.alive = alive
        if len(alive) == len(self.stories) == 1:  # nobody else goes on with its story: no copy
            self.stories[0].append(alive[0][2])
            self.ancestors[0].append(row)
        else:
            self.stories = [_longer(self.stories[parent], word) for _, parent, word in alive]
            self.ancestors = [_longer(self.ancestors[parent], row + parent) for _, parent, _ in alive]
        if self.covered is not None:
            self.covered.follow([parent for _, parent, _ in alive])
        missing, able = self.how.keep - len(self.ended), bool(alive) and alive[0][0] > NEVER
        self.going = missing > 0 and able and self.said < self.limit
        if not self.going and missing > 0 and (able or not self.ended):
            self.ended += self._cut()[:missing]

    def _cut(self) -> list[Hypothesis]:
        """What is left at the limit; one at least."""
        found = [
            self._rank(story, total, False, tuple(rows))
            for (total, _, _), story, rows in zip(self.alive, self.stories, self.ancestors, strict=True)
        ]
        return [h for h in found if h.logprob > NEVER] or found[:1]

    def _rank(
        self, story: array[int], total: float, finished: bool, rows: tuple[int, ...], parent: int | None = None
    ) -> Hypothesis:
        score = total if self.how.penalty is None else total / self.how.penalty(len(story) + finished)
        if parent is not None and self.covered is not None:
            score += self.covered.bonus(parent)
        return Hypothesis(tuple(story), score, total, finished, rows)


def _longer(story: array[int], word: int) -> array[int]:
    longer = story[:]
    longer.append(word)
    return longer


def stories(lines: Sequence[Line], device: torch.device) -> Tensor:
    """(rows, t) what every hypothesis has said, the last word last; -1 where one has not said as much as another."""
    said = [story for line in lines for story in line.stories]
    longest = max(len(story) for story in said)
    if not longest:
        return torch.empty(len(said), 0, dtype=torch.long, device=device)
    blank = array("q", [-1])
    even = (story if len(story) == longest else blank * (longest - len(story)) + story for story in said)
    return torch.frombuffer(bytearray().join(even), dtype=torch.long).view(-1, longest).to(device)
