"""Logits → tokens, for anything that can step. Search knows no model."""

from regard.decode.engine import Ask, Engine, Event, Live
from regard.decode.line import Hypothesis, Search
from regard.decode.search import Beam, Coverage, Greedy, Sample, Step, beam, greedy, sample

__all__ = [
    "Ask", "Beam", "Coverage", "Engine", "Event", "Greedy", "Hypothesis", "Live", "Sample", "Search", "Step",
    "beam", "greedy", "sample",
]  # fmt: skip
