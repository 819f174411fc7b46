"""Thin functions over the field's own libraries. A score never travels without its definition."""

from __future__ import annotations


class Measure(float):
    """A number that knows how it was computed: sacrebleu's signature, or one sentence."""

    definition: str

    def __new__(cls, value: float, definition: str) -> Measure:
        measure = super().__new__(cls, value)
        measure.definition = definition
        return measure
