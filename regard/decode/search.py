"""Greedy search, sampling and beam search over any `step(tokens, state) -> (logits, state)`.

Rows of a batch never meet: batch size, order and padding do not change an answer. Each row has its own limit, its own
prefix and its own random numbers; finished rows leave the batch.

    logits of all rows ─filters─▶ candidates, chosen at once for all that search alike ─▶ each line goes on, or ends
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.state import State, reorder
from regard.decode.chances import Chances, likeliest
from regard.decode.filters import NEVER, Filter, chain
from regard.decode.line import Choice, Covered, Hypothesis, Line, Penalty, Proposal, Search, check, stories
from regard.errors import ConfigError, DataError

Step = Callable[[Tensor, State], tuple[Tensor, State]]  # tokens (rows, T), state -> logits (rows, V), state


@runtime_checkable
class Ahead(Protocol):
    """A step that can go ahead by itself: all the steps of a search, without coming back for each word."""

    def run(self, state: State, prompt: Tensor, lines: Sequence[Line]) -> bool:
        """True: every line is done. False: it steps aside, and the lines are as they were."""


def wu(alpha: float) -> Penalty:
    """((5 + length) / 6)^α, after Wu et al. 2016."""
    return lambda length: ((5 + length) / 6) ** alpha


def average(alpha: float) -> Penalty:
    """length^α; α = 1 ranks by the mean log-probability of a token."""
    return lambda length: float(length) ** alpha


def none(alpha: float) -> Penalty:
    return lambda length: 1.0


USUAL = wu(0.6)
PENALTIES: dict[str, Callable[[float], Penalty]] = {"wu": wu, "average": average, "none": none}


@dataclass(frozen=True)
class Coverage:
    """Rewards reading the whole source, with this weight."""

    weight: float
    attended: Callable[[], Tensor]  # (rows, K): what the last step looked at
    real: Tensor  # (sentences, K) False at padding


class Moment(NamedTuple):
    """One step of a beam search before anything is thrown away, for whoever wants to know why a hypothesis lost."""

    sums: Tensor  # (n, candidates) summed log-probabilities, best first
    parent: Tensor  # (n, candidates) which hypothesis each would go on with
    word: Tensor  # (n, candidates)
    ends: Tensor  # (n, candidates) True where one has just finished
    kept: Tensor  # (n, keep) which of them go on, in their new order


Tell = Callable[[Moment], None]


class Single(Search):
    """One hypothesis, which goes on with one word."""

    columns = 2  # its total, its word

    def pick(self, scores: Tensor, thrown: Tensor | None) -> Tensor:
        """(n, V) -> (n,) the word of each line, from what the filters left."""
        raise TypeError(f"{type(self).__name__} must define pick")

    def throw(self, lines: Sequence[Line]) -> Tensor | None:
        """(n,) a random number for each line, where words are drawn."""
        return None

    def propose(self, logits: Tensor, own: Tensor, lines: Sequence[Line]) -> list[Proposal]:
        return _single(self.pick(_bent(logits, lines), self.throw(lines)), own, lines)

    def choose(self, chances: Chances, totals: Tensor, thrown: Tensor | None, eos: int) -> Choice:
        words = self.pick(chances.bent, thrown)[:, None]
        totals = totals + chances.own.gather(1, words)
        told, ends = torch.stack([totals, words.to(totals)], 1), words == eos
        return Choice(words, None, totals.masked_fill(ends, NEVER), totals.masked_fill(~ends, NEVER), told)

    def books(self, told: Tensor, eos: int) -> list[Proposal]:
        totals, words = told[:, 0, 0].tolist(), told[:, 1, 0].long().tolist()
        return [_alone(total, word, eos) for total, word in zip(totals, words, strict=True)]


@dataclass(frozen=True)
class Greedy(Single):
    """The likeliest token, again and again."""

    plain = True

    def pick(self, scores: Tensor, thrown: Tensor | None) -> Tensor:
        return scores.argmax(-1)


@dataclass(frozen=True)
class Sample(Single):
    """A token drawn from the (filtered) distribution."""

    seed: int

    def dice(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def throw(self, lines: Sequence[Line]) -> Tensor:
        return torch.cat([torch.rand(1, generator=line.dice, dtype=torch.float64) for line in lines])

    def pick(self, scores: Tensor, thrown: Tensor | None) -> Tensor:
        assert thrown is not None
        heap = scores.double().softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(heap, thrown.to(heap.device)[:, None] * heap[:, -1:], right=True)
        return drawn[:, 0].clamp(max=scores.shape[1] - 1)


@dataclass(frozen=True)
class Beam(Search):
    """Every kept hypothesis proposes its `expand` likeliest continuations; the `keep` best of all go on, and an end
    mark among the `keep` best finishes its hypothesis."""

    columns = 6  # totals of the best and of those that go on; ends and parents of the first, parents and words of these

    keep: int
    expand: int | None = None  # None: as many as are kept
    penalty: Penalty = USUAL
    tell: Tell | None = None

    def __post_init__(self) -> None:
        for name, number in (("keep", self.keep), ("expand", self.expand)):
            if number is not None and number < 1:
                raise ConfigError(f"{name}={number} came, but a hypothesis is kept at least; write {name}=1 or more")

    @property
    def alike(self) -> tuple[object, ...]:
        return type(self), self.keep, self.expand, self.tell

    def propose(self, logits: Tensor, own: Tensor, lines: Sequence[Line]) -> list[Proposal]:
        totals = torch.tensor([[total for total, _, _ in line.alive] for line in lines], dtype=torch.float64)
        best = likeliest(_only_prefix(_bent(own, lines), own, lines), self.proposed)
        moment, alive = self._weigh(*best, totals.to(own.device), lines[0].eos)
        if self.tell is not None:
            self.tell(moment)
        return self.books(self._chosen(moment, alive).told.cpu(), lines[0].eos)

    def choose(self, chances: Chances, totals: Tensor, thrown: Tensor | None, eos: int) -> Choice:
        return self._chosen(*self._weigh(*chances.likeliest(self.proposed), totals, eos))

    def books(self, told: Tensor, eos: int) -> list[Proposal]:
        totals, numbers = told[:, :2].tolist(), told[:, 2:].long().tolist()
        return [_proposal(*lists) for lists in zip(totals, numbers, strict=True)]

    def _chosen(self, moment: Moment, alive: Tensor) -> Choice:
        best = [t[:, : self.keep] for t in (moment.sums, moment.ends, moment.parent)]
        totals, parents, words = (t.gather(1, moment.kept) for t in (alive, moment.parent, moment.word))
        told = torch.stack([t.to(totals) for t in (best[0], totals, *best[1:], parents, words)], 1)
        return Choice(words, parents, totals, best[0].masked_fill(~best[1], NEVER), told)

    @property
    def proposed(self) -> int:
        """By each hypothesis; one more than goes on, since an end goes nowhere."""
        return (self.expand or self.keep) + 1

    def _weigh(self, best: Tensor, words: Tensor, totals: Tensor, eos: int) -> tuple[Moment, Tensor]:
        """Candidates of each sentence, best first, at least `keep`; and their sums but for those that end. They come as
        the likeliest words of each hypothesis, (n · width, proposed or as many as there are)."""
        (n, width), expand = totals.shape, self.expand or self.keep
        best = best.masked_fill(((words != eos).cumsum(-1) > expand) & (words != eos), NEVER)
        sums, words = (totals[..., None] + best.view(n, width, -1)).flatten(1), words.view(n, -1)
        if (short := self.keep - sums.shape[1]) > 0:
            sums, words = F.pad(sums, (0, short), value=NEVER), F.pad(words, (0, short))
        sums, flat = sums.sort(descending=True, stable=True)
        parent, word = (flat // best.shape[1]).clamp(max=width - 1), words.gather(1, flat)
        ends = (word == eos) & (sums > NEVER)
        ends[:, self.keep :] = False
        alive = sums.masked_fill(word == eos, NEVER)
        kept = alive.sort(descending=True, stable=True).indices[:, : self.keep]
        return Moment(sums, parent, word, ends, kept), alive


def greedy(
    step: Step,
    state: State,
    prompt: Tensor,
    *,
    eos: int,
    limit: int | Tensor,
    filters: tuple[Filter, ...] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    """The likeliest token, again and again."""
    lines = _lines([Greedy()] * len(prompt), prompt, eos, limit, filters, prefixes)
    return [best for (best,) in _search(step, state, prompt, lines)]


def sample(
    step: Step,
    state: State,
    prompt: Tensor,
    *,
    eos: int,
    limit: int | Tensor,
    seeds: Sequence[int],
    filters: tuple[Filter, ...] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[Hypothesis]:
    """A token drawn from the (filtered) distribution. One seed a row: neighbours in the batch draw apart."""
    lines = _lines([Sample(seed) for seed in seeds], prompt, eos, limit, filters, prefixes)
    return [best for (best,) in _search(step, state, prompt, lines)]


def beam(
    step: Step,
    state: State,
    prompt: Tensor,
    *,
    eos: int,
    limit: int | Tensor,
    keep: int,
    expand: int | None = None,
    penalty: Penalty = USUAL,
    coverage: Coverage | None = None,
    filters: tuple[Filter, ...] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
    tell: Tell | None = None,
) -> list[list[Hypothesis]]:
    """For each row of the prompt its `keep` best answers, best first.

    At each step every kept hypothesis proposes its `expand` likeliest continuations; the `keep` best of all go on, and
    an end mark among the `keep` best finishes its hypothesis. A sentence is done when `keep` have finished that rank no
    lower than the best of those that go on, as it stands, or when none can go on.
    """
    lines = _lines([Beam(keep, expand, penalty, tell)] * len(prompt), prompt, eos, limit, filters, prefixes)
    if coverage is not None:
        for line, real in zip(lines, coverage.real, strict=True):
            line.covered = Covered(coverage.weight, real)
    return _search(step, state, prompt, lines, coverage)


@torch.inference_mode()
def _search(
    step: Step, state: State, prompt: Tensor, lines: list[Line], coverage: Coverage | None = None
) -> list[list[Hypothesis]]:
    if lines and coverage is None and isinstance(step, Ahead) and step.run(state, prompt, lines):
        return [line.best for line in lines]
    tokens, live = prompt, lines
    while live:
        logits, state = step(tokens, state)
        if coverage is not None:
            _cover(live, coverage.attended())
        advance(live, logits)
        stay = [place for place, line in enumerate(live) if line.going]
        if stay:
            tokens, state = go_on(live, stay, tokens, state)
        live = [live[place] for place in stay]
    return [line.best for line in lines]


def advance(lines: Sequence[Line], logits: Tensor) -> None:
    """One word more for every line of a batch, from the logits of all their rows. Those that search alike choose at
    once."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    own, width = logits.log_softmax(-1), len(logits) // len(lines)
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, line in enumerate(lines):
        groups.setdefault(line.alike, []).append(place)
    for places in groups.values():
        some = [lines[place] for place in places]
        alone = len(some) == len(lines)
        told = (logits, own) if alone else (_of(logits, places, width), _of(own, places, width))
        for place, line, (ended, alive) in zip(places, some, some[0].how.propose(*told, some), strict=True):
            line.follow(ended, alive, place * width)


def go_on(lines: Sequence[Line], stay: Sequence[int], tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """From the tokens and the state of a batch to those of its next step, in which only these lines `stay`; their
    hypotheses follow their parents."""
    width = len(tokens) // len(lines)
    rows = [place * width + parent for place in stay for _, parent, _ in lines[place].alive]
    words = [word for place in stay for _, _, word in lines[place].alive]
    follow, said = torch.tensor([rows, words], device=tokens.device)
    if len(stay) < len(lines):
        state = reorder(state, follow, torch.tensor(stay, device=tokens.device))
    elif rows != list(range(len(tokens))):
        state = reorder(state, follow)
    return said[:, None], state


def _bent(scores: Tensor, lines: Sequence[Line]) -> Tensor:
    """What the filters, which these lines share, make of the scores of all words."""
    filters = lines[0].filters
    return chain(filters, scores, stories(lines, scores.device)) if filters else scores


def _single(words: Tensor, own: Tensor, lines: Sequence[Line]) -> list[Proposal]:
    """One word for each line, the prefix's where it is not over: it ends there, or goes on with it."""
    if any(line.prefix for line in lines):
        wanted = _wanted(lines, own)[:, 0]
        words = torch.where(wanted < 0, words, wanted)
    chances = own.gather(1, words[:, None])[:, 0].tolist()
    return [
        _alone(line.alive[0][0] + chance, word, line.eos)
        for line, chance, word in zip(lines, chances, words.tolist(), strict=True)
    ]


def _alone(total: float, word: int, eos: int) -> Proposal:
    only = ((total, 0, word),)
    return (only, ()) if word == eos else ((), only)


def _proposal(totals: list[list[float]], numbers: list[list[int]]) -> Proposal:
    """Of a line: those of its best that end, and those that go on."""
    (best, kept), (ends, parents, follow, words) = totals, numbers
    ended = [(total, parent, -1) for total, parent, end in zip(best, parents, ends, strict=True) if end]
    return ended, list(zip(kept, follow, words, strict=True))


def _only_prefix(chance: Tensor, own: Tensor, lines: Sequence[Line]) -> Tensor:
    """The prefix's word alone where it is not over, whatever the filters say of it, else what they left."""
    if not any(line.prefix for line in lines):
        return chance
    wanted = _wanted(lines, own)
    other = torch.arange(chance.shape[1], device=chance.device) != wanted
    return torch.where(wanted < 0, chance, own.masked_fill(other, NEVER))


def _wanted(lines: Sequence[Line], own: Tensor) -> Tensor:
    """(rows, 1) the next word of each prefix; -1 where it is over."""
    words = [line.forced for line in lines for _ in line.alive]
    if (most := max(words)) >= own.shape[1]:
        raise DataError(f"a prefix with the word {most} came, but there are {own.shape[1]}, from 0 on")
    return torch.tensor(words, device=own.device)[:, None]


def _cover(lines: Sequence[Line], attended: Tensor) -> None:
    for line, read in zip(lines, attended.split(len(attended) // len(lines)), strict=True):
        assert line.covered is not None
        line.covered.see(read)


def _of(t: Tensor, places: Sequence[int], width: int) -> Tensor:
    """The rows of some lines: (n · w, V) -> (places · w, V)."""
    return t.unflatten(0, (-1, width))[list(places)].flatten(0, 1)


def _lines(
    how: Sequence[Search],
    prompt: Tensor,
    eos: int,
    limit: int | Tensor,
    filters: tuple[Filter, ...],
    prefixes: Sequence[Sequence[int]] | None,
) -> list[Line]:
    """A line for each row of a batch; each may have its own limit and its own prefix."""
    if prompt.ndim != 2:
        came = f"a prompt of shape {tuple(prompt.shape)} came"
        raise DataError(f"{came}, but (rows, tokens) is wanted; write prompt[None] where there is one row")
    limits = [limit] * len(prompt) if isinstance(limit, int) else limit.tolist()
    begun = prefixes or [()] * len(prompt)
    for name, given in (("seeds", how), ("limits", limits), ("prefixes", begun)):
        if len(given) != len(prompt):
            raise DataError(f"{len(given)} {name} came for {len(prompt)} rows of the prompt; give each row one")
    check(prompt.shape[1], min(limits, default=1))
    if (least := min((word for prefix in begun for word in prefix), default=0)) < 0:
        raise DataError(f"a prefix with the word {least} came, but words are numbered from 0 on")
    return [
        Line(one, eos=eos, limit=most, filters=filters, prefix=prefix)
        for one, most, prefix in zip(how, limits, begun, strict=True)
    ]
