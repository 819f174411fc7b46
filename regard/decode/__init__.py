"""Logits → tokens, for anything that can step. Search knows no model."""

from regard.decode.search import Coverage, Hypothesis, Step, beam, greedy, sample

__all__ = ["Coverage", "Hypothesis", "Step", "beam", "greedy", "sample"]
