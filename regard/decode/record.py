"""The tree of a beam search: every candidate it weighed, and what became of each.

record = Record(eos)
(best, *others), = beam(..., tell=record, penalty=record.penalty)
record.nodes      # in the order in which they were met; each knows its parent
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard.decode.search import Hypothesis, Moment

ROOT = -1


@dataclass
class Node:
    """A candidate. `logprob` is its word's own, `total` that of all words up to it, and `score` what the search would
    rank it by if it ended here: the total over the length penalty.
    """

    parent: int  # which node, or ROOT
    step: int
    token: int
    logprob: float
    total: float
    score: float
    fate: str  # kept, finished, pruned; and in the end left: it could have gone on, but enough had finished


class Record:
    """Told of each step of the search for one sentence."""

    wide = 4  # continuations that each hypothesis proposes at least, so that there is something to compare with

    def __init__(self, eos: int) -> None:
        self.eos = eos
        self.penalty: Callable[[int], float] = lambda length: 1.0
        self.nodes: list[Node] = []
        self.live = [ROOT]  # the node of each hypothesis that goes on
        self.step = 0

    def __call__(self, moment: Moment) -> None:
        sums, parents, words, ends, kept = (t[0].tolist() for t in moment)
        going = set(kept)
        found: dict[int, int] = {}
        for place, (total, parent, token, end) in enumerate(zip(sums, parents, words, ends, strict=True)):
            if total == -math.inf:
                continue
            before = self.live[parent]
            fate = "finished" if end else "kept" if place in going and token != self.eos else "pruned"
            found[place] = len(self.nodes)
            own = total - (self.nodes[before].total if before != ROOT else 0.0)
            score = total / self.penalty(self.step + 1)
            self.nodes.append(Node(before, self.step, token, own, total, score, fate))
        self.live = [found.get(place, ROOT) for place in kept]
        self.step += 1

    def close(self) -> None:
        """The search is over: whoever was still being written is left where it stands."""
        for node in self.live:
            if node != ROOT:
                self.nodes[node].fate = "left"

    def path(self, hypothesis: Hypothesis) -> list[int]:
        """The nodes of an answer, word by word."""
        words = [*hypothesis.tokens, self.eos] if hypothesis.finished else [*hypothesis.tokens]
        at, found = ROOT, []
        by_parent = {(node.parent, node.token): i for i, node in enumerate(self.nodes)}
        for word in words:
            at = by_parent[at, word]
            found.append(at)
        return found
