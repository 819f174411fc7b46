"""Greedy search, sampling and beam search over any `step(tokens, state) -> (logits, state)`.

Rows of a batch never meet: batch size, order and padding do not change an answer. Each row has its own limit, its own
prefix and its own random numbers; finished rows leave the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.state import State, reorder
from regard.decode.filters import NEVER, Filter, chain

Step = Callable[[Tensor, State], tuple[Tensor, State]]  # tokens (rows, T), state -> logits (rows, V), state
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


def wu(alpha: float) -> Penalty:
    """((5 + length) / 6)^α, after Wu et al. 2016."""
    return lambda length: ((5 + length) / 6) ** alpha


def average(alpha: float) -> Penalty:
    """length^α; α = 1 ranks by the mean log-probability of a token."""
    return lambda length: float(length) ** alpha


def none(alpha: float) -> Penalty:
    return lambda length: 1.0


PENALTIES: dict[str, Callable[[float], Penalty]] = {"wu": wu, "average": average, "none": none}


@dataclass(frozen=True)
class Coverage:
    """Rewards reading the whole source: weight · Σ_keys log min(Σ_steps attention, 1), after Wu et al. 2016."""

    weight: float
    attended: Callable[[], Tensor]  # (rows, K): what the last step looked at
    real: Tensor  # (sentences, K) False at padding


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
    return _one_by_one(step, state, prompt, eos, limit, filters, prefixes, lambda logits, live: logits.argmax(-1))


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
    dice = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(logits: Tensor, live: list[int]) -> Tensor:
        thrown = torch.cat([torch.rand(1, generator=dice[row], dtype=torch.float64) for row in live])
        heap = logits.double().softmax(-1).cumsum(-1)
        return torch.searchsorted(heap, thrown.to(heap.device)[:, None] * heap[:, -1:], right=True)[:, 0].clamp(
            max=logits.shape[1] - 1
        )

    return _one_by_one(step, state, prompt, eos, limit, filters, prefixes, draw)


@torch.inference_mode()
def _one_by_one(
    step: Step,
    state: State,
    prompt: Tensor,
    eos: int,
    limit: int | Tensor,
    filters: tuple[Filter, ...],
    prefixes: Sequence[Sequence[int]] | None,
    choose: Callable[[Tensor, list[int]], Tensor],
) -> list[Hypothesis]:
    room = _room(limit, len(prompt))
    live = list(range(len(prompt)))  # which sentence each row of the batch is
    where: list[list[int]] = [[] for _ in live]
    done: dict[int, Hypothesis] = {}
    story = prompt.new_empty(len(prompt), 0)
    logprob = torch.zeros(len(prompt), dtype=torch.float64, device=prompt.device)
    tokens = prompt
    while live:
        logits, state = step(tokens, state)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = choose(chain(filters, logits, story), live)
        if prefixes is not None:
            chosen = _forced(chosen, prefixes, live, story.shape[1])
        logprob = logprob + logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
        story = torch.cat([story, chosen[:, None]], 1)
        stay = []
        for row, (sentence, token) in enumerate(zip(live, chosen.tolist(), strict=True)):
            where[sentence].append(row)
            if token != eos and story.shape[1] < room[sentence]:
                stay.append(row)
                continue
            words, score = story[row].tolist(), float(logprob[row])
            done[sentence] = Hypothesis(_words(words, eos), score, score, token == eos, tuple(where[sentence]))
        if len(stay) < len(live):
            live, rows = [live[row] for row in stay], torch.tensor(stay, dtype=torch.long, device=prompt.device)
            story, logprob, chosen = story[rows], logprob[rows], chosen[rows]
            state = reorder(state, rows, rows) if live else state
        tokens = chosen[:, None]
    return [done[sentence] for sentence in sorted(done)]


@dataclass
class _Beams:
    """All hypotheses still being written, a line a sentence: (sentences, width, …)."""

    live: list[int]  # which sentence each line is
    scores: Tensor  # (n, w) summed log-probabilities; -inf where there is no hypothesis
    story: Tensor  # (n, w, t)
    where: Tensor  # (n, w, t) rows of the batch, step by step
    covered: Tensor | None  # (n, w, K) how much of each key has been read

    def follow(self, parent: Tensor, scores: Tensor, word: Tensor, rows: Tensor) -> None:
        """Each line's hypotheses become children of `parent`, one word longer."""
        self.scores = scores
        self.story = torch.cat([_of(self.story, parent), word[..., None]], -1)
        self.where = torch.cat([_of(self.where, parent), rows[..., None]], -1)
        self.covered = None if self.covered is None else _of(self.covered, parent)

    def drop(self, stay: list[int]) -> Tensor:
        """Only these lines go on."""
        lines = torch.tensor(stay, device=self.scores.device)
        self.live = [self.live[line] for line in stay]
        self.scores, self.story, self.where = self.scores[lines], self.story[lines], self.where[lines]
        self.covered = None if self.covered is None else self.covered[lines]
        return lines


@torch.inference_mode()
def beam(
    step: Step,
    state: State,
    prompt: Tensor,
    *,
    eos: int,
    limit: int | Tensor,
    keep: int,
    expand: int | None = None,
    penalty: Penalty = wu(0.6),
    coverage: Coverage | None = None,
    filters: tuple[Filter, ...] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """For each row of the prompt its `keep` best answers, best first.

    At each step every kept hypothesis proposes its `expand` likeliest continuations; the `keep` best of all go on, and
    an end mark among the `keep` best finishes its hypothesis. A sentence is done when `keep` have finished, or none can
    go on.
    """
    n, device = len(prompt), prompt.device
    room = _room(limit, n)
    finished: list[list[Hypothesis]] = [[] for _ in range(n)]
    empty = prompt.new_empty(n, 1, 0)  # one hypothesis a sentence before the first choice, `keep` after it
    covered = None if coverage is None else torch.zeros(n, 1, coverage.real.shape[1], device=device)
    beams = _Beams(list(range(n)), torch.zeros(n, 1, dtype=torch.float64, device=device), empty, empty, covered)
    tokens = prompt
    for length in itertools.count(1):
        logits, state = step(tokens, state)
        if coverage is not None and beams.covered is not None:
            beams.covered = beams.covered + coverage.attended().view_as(beams.covered)
        sums, parent, word = _propose(logits, beams, eos, keep, expand or keep, filters, prefixes)
        rows = parent + torch.arange(len(beams.live), device=device)[:, None] * beams.scores.shape[1]
        ends = (word == eos) & (sums > NEVER)
        ends[:, keep:] = False
        alive = sums.masked_fill(word == eos, NEVER)
        order = alive.sort(descending=True, stable=True).indices[:, :keep]
        alive = alive.gather(1, order)
        any_end, can_go_on = torch.stack([ends.any(1), alive[:, 0] > NEVER]).tolist()  # the one wait for the device
        if any(any_end):
            _collect(finished, beams, ends, sums, parent, rows, penalty, coverage)
        parent, word, rows = (t.gather(1, order) for t in (parent, word, rows))
        beams.follow(parent, alive, word, rows)
        stay = []
        for line, sentence in enumerate(beams.live):
            missing = keep - len(finished[sentence])
            if missing > 0 and can_go_on[line] and length < room[sentence]:
                stay.append(line)
            elif missing > 0 and (can_go_on[line] or not finished[sentence]):
                finished[sentence] += _cut(beams, line, missing, penalty)
        if not stay:
            break
        if len(stay) < len(beams.live):
            lines = beams.drop(stay)
            word, state = word[lines], reorder(state, rows[lines].flatten(), lines)
        else:
            state = reorder(state, rows.flatten())
        tokens = word.reshape(-1, 1)
    return [sorted(found, key=lambda h: (h.finished, h.score), reverse=True)[:keep] for found in finished]


def _propose(
    logits: Tensor,
    beams: _Beams,
    eos: int,
    keep: int,
    expand: int,
    filters: tuple[Filter, ...],
    prefixes: Sequence[Sequence[int]] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates of each sentence, best first, at least `keep`: their sums, parents and words, (n, candidates) each."""
    n, width = beams.scores.shape
    own = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    chance = chain(filters, own, beams.story.flatten(0, 1))
    if prefixes is not None:
        chance = _only_prefix(chance, own, prefixes, beams.live, beams.story.shape[2])
    best, words = chance.topk(min(expand + 1, chance.shape[1]))  # one more than asked for: an end is no continuation
    best = best.masked_fill(((words != eos).cumsum(-1) > expand) & (words != eos), NEVER)
    sums = (beams.scores[..., None] + best.view(n, width, -1)).flatten(1)
    words = words.view(n, -1)
    if (short := keep - sums.shape[1]) > 0:
        sums, words = F.pad(sums, (0, short), value=NEVER), F.pad(words, (0, short))
    sums, flat = sums.sort(descending=True, stable=True)
    parent = (flat // best.shape[1]).clamp(max=width - 1)
    return sums, parent, words.gather(1, flat)


def _collect(
    finished: list[list[Hypothesis]],
    beams: _Beams,
    ends: Tensor,
    sums: Tensor,
    parent: Tensor,
    rows: Tensor,
    penalty: Penalty,
    coverage: Coverage | None,
) -> None:
    """Hypotheses that have just ended."""
    line, candidate = ends.nonzero().unbind(1)
    at = parent[line, candidate]
    stories = beams.story[line, at].tolist()
    wheres = torch.cat([beams.where[line, at], rows[line, candidate][:, None]], 1).tolist()
    logprobs = sums[line, candidate].tolist()
    bonus = [0.0] * len(stories)
    if coverage is not None and beams.covered is not None:
        sentences = torch.tensor(beams.live, device=line.device)[line]
        missed = beams.covered[line, at].clamp(1e-9, 1.0).log().masked_fill(~coverage.real[sentences], 0.0)
        bonus = (coverage.weight * missed.sum(-1)).tolist()
    for i, sentence in enumerate(beams.live[j] for j in line.tolist()):
        score = logprobs[i] / penalty(len(stories[i]) + 1) + bonus[i]
        finished[sentence].append(Hypothesis(tuple(stories[i]), score, logprobs[i], True, tuple(wheres[i])))


def _cut(beams: _Beams, line: int, most: int, penalty: Penalty) -> list[Hypothesis]:
    """What the limit cut off; it ranks after whatever has ended by itself."""
    stories, wheres = beams.story[line].tolist(), beams.where[line].tolist()
    found: list[Hypothesis] = []
    for words, where, logprob in zip(stories, wheres, beams.scores[line].tolist(), strict=True):
        if logprob > NEVER or not found:
            found.append(Hypothesis(tuple(words), logprob / penalty(len(words)), logprob, False, tuple(where)))
    return found[:most]


def _of(t: Tensor, parent: Tensor) -> Tensor:
    """(n, w, …) along the beams' parents (n, w')."""
    return t.gather(1, parent[..., None].expand(-1, -1, t.shape[2]))


def _forced(chosen: Tensor, prefixes: Sequence[Sequence[int]], live: list[int], t: int) -> Tensor:
    """The prefix's word where it is not over, else the chosen one."""
    said = [prefixes[s][t] if t < len(prefixes[s]) else -1 for s in live]
    wanted = torch.tensor(said, device=chosen.device)
    return torch.where(wanted < 0, chosen, wanted)


def _only_prefix(chance: Tensor, own: Tensor, prefixes: Sequence[Sequence[int]], live: list[int], t: int) -> Tensor:
    """The prefix's word alone where it is not over, whatever the filters say of it, else what they left."""
    width = len(chance) // len(live)
    said = [prefixes[s][t] if t < len(prefixes[s]) else -1 for s in live for _ in range(width)]
    wanted = torch.tensor(said, device=chance.device)[:, None]
    other = torch.arange(chance.shape[1], device=chance.device) != wanted
    return torch.where(wanted < 0, chance, own.masked_fill(other, NEVER))


def _room(limit: int | Tensor, n: int) -> list[int]:
    """How long each sentence's answer may become."""
    return [limit] * n if isinstance(limit, int) else limit.tolist()


def _words(tokens: list[int], eos: int) -> tuple[int, ...]:
    return tuple(tokens[:-1] if tokens[-1] == eos else tokens)
