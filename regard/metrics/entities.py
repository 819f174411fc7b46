"""Precision, recall and F1 of named entities in tags such as O, B-PER, I-PER: an entity counts when its kind, its first
and its last word are all right.

Any tags are read, also such as break their scheme, as the CoNLL scorer and seqeval read them: B- begins an entity, and
so does an I- that goes on with none of its kind. This reads IOB1 and IOB2 alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.metrics import Measure


class Entity(NamedTuple):
    """Some neighbouring words, `last` included."""

    kind: str
    first: int
    last: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in their order."""
    found: list[Entity] = []
    before = ""  # the kind of the entity that could go on
    for place, tag in enumerate(tags):
        prefix, kind = tag[:1], tag[1:].removeprefix("-") or "_"
        if prefix not in ("B", "I"):
            before = ""
        elif prefix == "I" and kind == before:
            found[-1] = found[-1]._replace(last=place)
        else:
            found.append(Entity(kind, place, place))
            before = kind
    return found


def entity_scores(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> dict[str, Measure]:
    """Of all sentences together, in %; 0 where there is nothing to divide by."""
    ours, theirs = _all(predicted), _all(wanted)
    right = len(ours & theirs)
    whole = "kind, first and last word right; seqeval's default mode"
    return {
        "precision": Measure(_share(right, len(ours)), f"{right} of {len(ours)} predicted entities, in %: {whole}"),
        "recall": Measure(_share(right, len(theirs)), f"{right} of {len(theirs)} true entities found, in %: {whole}"),
        "f1": Measure(
            _share(2 * right, len(ours) + len(theirs)),
            f"micro-averaged F1 over {len(theirs)} true and {len(ours)} predicted entities, in %: {whole}",
        ),
    }


def tag_accuracy(predicted: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]) -> Measure:
    """Words whose tag is right, in %."""
    pairs = [pair for rows in zip(predicted, wanted, strict=True) for pair in zip(*rows, strict=True)]
    right = sum(ours == theirs for ours, theirs in pairs)
    return Measure(_share(right, len(pairs)), f"words with the right tag, in % of {len(pairs)}")


def _all(sentences: Sequence[Sequence[str]]) -> set[tuple[int, Entity]]:
    return {(number, entity) for number, tags in enumerate(sentences) for entity in entities(tags)}


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
