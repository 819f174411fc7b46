"""One answer in the making: the hypotheses that are still being written, those that have ended, and when it is done.

Whoever searches proposes how the hypotheses go on; a line keeps the books. Lines of a batch never meet.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decode.chances import Chances
from regard.decode.filters import NEVER, Filter
from regard.errors import DataError

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


class Choice(NamedTuple):
    """The same for n lines at once, in tensors that need not leave their device."""

    words: Tensor  # (n, keep) that are added
    parents: Tensor | None  # (n, keep) which of its line's hypotheses each follows; None: there is one
    totals: Tensor  # (n, keep) summed log-probabilities, in float64
    ended: Tensor  # (n, keep) summed log-probabilities of those that have just ended; -inf: there is none
    told: Tensor  # (n, columns, keep) all that the books are kept by, in float64, which has room for any word


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
    columns: int = 0  # that a choice tells of each; 0: it cannot be made on the device
    penalty: Penalty | None = None
    plain: bool = False  # each line says its likeliest word, and there is nothing more to it

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

    def choose(self, chances: Chances, totals: Tensor, thrown: Tensor | None, eos: int) -> Choice:
        """What `propose` proposes, on the device: lines come as their summed log-probabilities (n, keep), and as the
        numbers that they have thrown."""
        raise TypeError(f"{type(self).__name__} must define choose")

    def books(self, told: Tensor, eos: int) -> list[Proposal]:
        """What a choice has told, line by line."""
        raise TypeError(f"{type(self).__name__} must define books")


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
        self.steps: list[tuple[int, Sequence[Candidate]]] = []  # its first row in each, and who went on from there
        self.ended: list[Hypothesis] = []
        self.going = True
        self._stories, self._read = [array("q")], 0  # and how many steps are in them

    @property
    def forced(self) -> int:
        """The next word of the prefix, where it is not over; -1 else."""
        return self.prefix[self.said] if self.said < len(self.prefix) else -1

    @property
    def best(self) -> list[Hypothesis]:
        """At most `keep` answers, best first; what the limit cut off ranks after whatever has ended by itself."""
        return sorted(self.ended, key=lambda h: (h.finished, h.score), reverse=True)[: self.how.keep]

    @property
    def ranks(self) -> list[float]:
        """Scores of the `keep` best that have ended, best first."""
        return sorted((h.score for h in self.ended), reverse=True)[: self.how.keep]

    @property
    def least(self) -> float:
        """Whoever goes on has to rank higher than that."""
        return self.ranks[-1] if len(self.ended) >= self.how.keep else NEVER

    @property
    def stories(self) -> list[array[int]]:
        """What each hypothesis has said, put together as far as it was not asked for before."""
        for _, alive in self.steps[self._read :]:
            if len(alive) == len(self._stories) == 1:  # nobody else goes on with its story: no copy
                self._stories[0].append(alive[0][2])
            else:
                self._stories = [_longer(self._stories[parent], word) for _, parent, word in alive]
        self._read = len(self.steps)
        return self._stories

    def follow(self, ended: Sequence[Candidate], alive: Sequence[Candidate], row: int) -> None:
        """Some hypotheses end, the others become one word longer. `row` of the batch is the line's first.

        It is done when none can go on, at the limit, or when `keep` have ended that rank no lower than the best of
        those that go on, as it stands: a model that is sure of itself lets some end early of which it thinks nothing.
        """
        for total, parent, _ in ended:
            words, rows = self._trail(parent)
            self.ended.append(self._rank(words, total, True, (*rows, row + parent), parent))
        self.said += 1
        self.alive = alive
        self.steps.append((row, alive))
        if self.covered is not None:
            self.covered.follow([parent for _, parent, _ in alive])
        missing, able = self.how.keep - len(self.ended), bool(alive) and alive[0][0] > NEVER
        self.going = able and self.said < self.limit and self._score(alive[0][0], self.said) > self.least
        if not self.going and missing > 0 and (able or not self.ended):
            self.ended += self._cut()[:missing]

    def _cut(self) -> list[Hypothesis]:
        """What is left at the limit; one at least."""
        found = []
        for place, (total, _, _) in enumerate(self.alive):
            words, rows = self._trail(place)
            found.append(self._rank(words, total, False, rows))
        return [h for h in found if h.logprob > NEVER] or found[:1]

    def _trail(self, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The words of a hypothesis, and the rows in which they were chosen: back from parent to parent."""
        words, rows = [], []
        for row, alive in reversed(self.steps):
            _, parent, word = alive[place]
            words.append(word)
            rows.append(row + parent)
            place = parent
        return tuple(reversed(words)), tuple(reversed(rows))

    def _rank(
        self,
        story: tuple[int, ...],
        total: float,
        finished: bool,
        rows: tuple[int, ...],
        parent: int | None = None,
    ) -> Hypothesis:
        score = self._score(total, len(story) + finished)
        if parent is not None and self.covered is not None:
            score += self.covered.bonus(parent)
        return Hypothesis(story, score, total, finished, rows)

    def _score(self, total: float, length: int) -> float:
        return total if self.how.penalty is None else total / self.how.penalty(length)


def check(prompt: int, limit: int) -> None:
    """So many tokens to go on from, and so many words at most."""
    if prompt < 1:
        raise DataError("an empty prompt came, but a word follows another; write the mark that begins a text")
    if limit < 1:
        raise DataError(f"limit={limit} came, but an answer has a word at least; write 1 or more")


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
