"""What was encoded is what a batch holds, however the examples are put together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.labelled import Example
from regard.data.layout import Layout, both_orders, for_encoder, lay_out, once
from regard.data.readings import Readings
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

WORDS = ["a", "b", "c", "d", "e", "f", "g"]
EXAMPLES = [
    Example(3 * n + 1, (" ".join(WORDS[: 1 + n % 7]), " ".join(WORDS[n % 3 : 5])), "yes" if n % 3 else "no")
    for n in range(20)
]
TOKENIZER = Tokenizer.train([" ".join(WORDS)], kind="word", size=20)
LAYOUT = Layout(for_encoder, both_orders, TOKENIZER.marks, 10)


def build(folder: Path, examples: list[Example], labels: tuple[str, ...] = ("no", "yes")) -> Readings:
    return Readings.build(folder / "data" / "train", examples, labels, TOKENIZER, LAYOUT, bad=BadLines())


def test_a_batch_holds_the_readings_of_its_examples_and_padding(tmp_path: Path) -> None:
    readings = build(tmp_path, EXAMPLES)
    places = np.array([13, 0, 6])
    batch = readings.batch(places)
    wanted = [r for some in lay_out(TOKENIZER, [EXAMPLES[i].texts for i in places], LAYOUT) for r in some]
    assert [row[real].tolist() for row, real in zip(batch.sequences, batch.real, strict=True)] == [
        r.tokens for r in wanted
    ]
    assert [row[real].tolist() for row, real in zip(batch.segments, batch.real, strict=True)] == [
        r.segments for r in wanted
    ]
    assert (batch.sequences[~batch.real] == TOKENIZER.marks.pad).all()
    assert batch.summaries.tolist() == [r.summary for r in wanted]
    assert batch.wanted.tolist() == [1, 0, 0]
    assert batch.ids == (40, 1, 19)
    assert batch.tokens == batch.real.sum() == sum(len(r.tokens) for r in wanted)
    assert batch.sequences.shape[1] * 2 == readings.lengths[places].max()
    moved = batch.to("cpu")
    assert torch.equal(moved.sequences, batch.sequences)
    assert moved.ids == batch.ids


def test_what_is_opened_is_what_was_built_and_other_data_has_another_name(tmp_path: Path) -> None:
    built = build(tmp_path, EXAMPLES)
    opened = Readings.open(tmp_path / "data" / "train")
    places = np.arange(len(built))
    assert len(opened) == len(EXAMPLES)
    assert torch.equal(built.batch(places).sequences, opened.batch(places).sequences)
    assert opened.fingerprint == built.fingerprint == build(tmp_path / "again", EXAMPLES).fingerprint
    turned = [EXAMPLES[0]._replace(label="yes"), *EXAMPLES[1:]]
    others = [
        build(tmp_path / "a", turned),
        build(tmp_path / "b", EXAMPLES[1:]),
        build(tmp_path / "c", EXAMPLES, ("yes", "no")),
    ]
    assert len({built.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_numbers_instead_of_labels(tmp_path: Path) -> None:
    rated = [example._replace(label=str(n / 4)) for n, example in enumerate(EXAMPLES)]
    batch = build(tmp_path, rated, ()).batch(np.array([3, 5]))
    assert batch.wanted.dtype == torch.float32
    assert batch.wanted.tolist() == [0.75, 1.25]


def test_progress_is_told_and_nothing_is_refused(tmp_path: Path) -> None:
    told: list[int] = []
    layout = Layout(for_encoder, once, TOKENIZER.marks, 10)
    Readings.build(tmp_path / "x", EXAMPLES, ("no", "yes"), TOKENIZER, layout, bad=BadLines(), progress=told.append)
    assert told == [len(EXAMPLES)]
    with pytest.raises(DataError, match=r"the data: no example is left .0 of 0 lines skipped.; give other data"):
        build(tmp_path, [])
