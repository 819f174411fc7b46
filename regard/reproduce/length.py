"""Quality against length: the figure that motivates attention.

A model that squeezes its source into one vector has the same room for sixty tokens as for six; one that may look back
has no such limit. Bahdanau, Cho and Bengio (2015) show it in their figure 2; here it is drawn for copies of random
letters, where nothing can be guessed, and for phrases that are read and written letter by letter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regard.disk import write
from regard.reproduce.layout import by_cell
from regard.reproduce.plot import curves
from regard.reproduce.study import Cell, Report, Study, read_json, read_report

if TYPE_CHECKING:
    from regard.pipeline.rewrite import Rewriter

WIDTH = 10  # tokens


def by_length(folder: Path) -> Report:
    """Exact match and right tokens of the test split, by the length of the source; decoded once, then kept."""
    place = folder / "lengths.json"
    if not place.exists():
        from regard.pipeline.rewrite import load_rewriter

        write(place, json.dumps(dict(_measures(load_rewriter(folder))), indent=1, ensure_ascii=False).encode())
    return read_report(place)


def _measures(pipeline: Rewriter) -> Iterator[tuple[str, dict[str, object]]]:
    pairs = read_json(pipeline.folder / "data" / "test.json")
    answers = pipeline([source for source, _ in pairs])
    read, write = pipeline.tokenizers.source.encode, pipeline.tokenizers.target.encode
    buckets: dict[str, list[tuple[list[int], list[int]]]] = {}
    for (source, target), answer in zip(pairs, answers, strict=True):
        buckets.setdefault(bucket(len(read(source))), []).append((write(target), write(answer)))
    for length, some in buckets.items():
        exact = sum(wanted == got for wanted, got in some)
        right = sum(sum(w == g for w, g in zip(wanted, got, strict=False)) for wanted, got in some)
        tokens = sum(len(wanted) for wanted, _ in some)
        told = {"value": 100 * exact / len(some), "definition": "answers equal to the reference, in %"}
        yield f"exact {length}", told
        told = {"value": 100 * right / tokens, "definition": "tokens of the reference that the answer has there, in %"}
        yield f"accuracy {length}", told


def bucket(length: int) -> str:
    """ "1–10", "11–20", …"""
    first = 1 + (length - 1) // WIDTH * WIDTH
    return f"{first}–{first + WIDTH - 1}"


def columns(shortest: int, longest: int) -> tuple[str, ...]:
    return tuple(f"exact {bucket(length)}" for length in range(shortest, longest + 1, WIDTH))


CELLS = (
    Cell("none", {"model": {"decoder": "sutskever"}}),
    Cell("cho", {"model": {"decoder": "cho"}}),
    Cell("bahdanau", {"model": {"decoder": "bahdanau", "score": "additive"}}),
    Cell("luong", {"model": {"decoder": "luong", "score": "general"}}),
)
NOTES = (
    "lengths are in tokens of the source: letters",
    "none and cho have the last state of the encoder alone; bahdanau (additive) and luong (general) look back",
)

LENGTH = {
    "copy": Study(
        title="Copies of random letters, by length",
        recipe="spoken-rnn",
        settings={
            "data": {"made": "copy", "count": 60_000, "held": 1200, "longest": 61},
            "tokens": {"kind": "word", "joint": True},
            "train": {"steps": 1200},
        },
        cells=CELLS,
        columns=columns(1, 60),
        measure=by_length,
        lay=by_cell,
        draw=curves,
        quick=("none", "bahdanau"),
        notes=NOTES,
    ),
    "spoken": Study(
        title="Phrases letter by letter, English → German, by length",
        recipe="spoken-rnn",
        settings={"data": {"held": 2000}, "tokens": {"kind": "char"}},
        cells=CELLS,
        columns=columns(11, 70),  # hardly any phrase is shorter or longer
        measure=by_length,
        lay=by_cell,
        draw=curves,
        quick=("none", "bahdanau"),
        notes=NOTES,
    ),
}
