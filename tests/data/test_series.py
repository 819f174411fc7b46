"""Series in batches: what is wanted stands where it counts, padding does not, and a store gives what was put in."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.numbers import PIXELS, Recorded
from regard.data.series import MADE, Made, Stored
from regard.data.text import BadLines
from regard.errors import ConfigError, DataError


def recorded(lengths: list[int], y: Any = None, *, channels: int = 2, x: Any = None, **how: Any) -> Recorded:
    total = sum(lengths)
    x = np.random.default_rng(0).random((total, channels), np.float32) if x is None else x
    y = None if y is None else np.asarray(y)
    return Recorded(x, np.array(lengths, np.int64), y, np.arange(1, len(lengths) + 1), **how)


def store(folder: Path, found: Recorded, kind: Any, labels: tuple[str, ...] = (), **how: Any) -> Stored:
    bad = how.pop("bad", BadLines())
    bad.file, bad.unit, bad.one = "a.npz", "examples", "example"
    return Stored.build(folder / "store", found, kind, labels, bad=bad, **how)


# ---- made


@pytest.mark.parametrize("task", MADE)
def test_a_made_batch_is_what_was_drawn(task: str) -> None:
    source = Made(task, "train", 50, 30)
    assert len(source) == 50
    places = np.array([4, 49, 0])
    batch = source.batch(places)
    x, y = source.making.draw("train", places, 30, 0)
    assert np.array_equal(batch.x.numpy(), x)
    assert np.array_equal(batch.wanted.numpy(), y)
    assert batch.x.shape[1:] == (source.lengths[0], source.channels)
    assert batch.ids == (5, 50, 1)
    assert batch.real.all()
    assert batch.tokens == batch.scored.sum() == (3 * 50 if task == "copy" else 3)
    if task != "copy":
        assert batch.scored[:, -1].all()


def test_made_splits_counts_and_lengths_are_other_data() -> None:
    made = [Made("adding", "train", 50, 30), Made("adding", "valid", 50, 30), Made("adding", "train", 51, 30)]
    marks = [*(one.fingerprint for one in made), Made("copy", "train", 50, 30).fingerprint]
    assert len({*marks, Made("adding", "train", 50, 31).fingerprint}) == 5
    assert Made("adding", "train", 50, 30).fingerprint == marks[0]


@pytest.mark.parametrize(("task", "least"), [("adding", 2), ("copy", 1), ("order", 10)])
def test_a_made_series_that_is_too_short(task: str, least: int) -> None:
    Made(task, "train", 3, least).batch(np.arange(3))
    with pytest.raises(
        ConfigError, match=rf'data.length = {least - 1} is too short for made = "{task}"; write {least} or more'
    ):
        Made(task, "train", 3, least - 1)


def test_the_chance_level_is_told() -> None:
    assert "1/6 = 0.1667" in Made("adding", "train", 3, 600).chance
    for length, level in ((500, "0.03999"), (1000, "0.02039"), (2000, "0.01029")):
        assert Made("copy", "train", 3, length).chance.endswith(f"= {level}")
        assert round(10 * math.log(8) / (length + 20), 5) == float(level)


# ---- stored


lengths = st.lists(st.integers(2, 9), min_size=1, max_size=6)


@given(lengths, st.sampled_from(["number", "label", "labels", "keys"]))
def test_a_stored_batch_is_what_was_recorded(tmp_path_factory: Any, some: list[int], kind: str) -> None:
    folder: Path = tmp_path_factory.mktemp("series")
    y = {"number": np.arange(len(some)) / 4, "label": np.arange(len(some)) % 3, "labels": np.arange(sum(some)) % 4}
    x = np.random.default_rng(1).integers(0, 2, (sum(some), 3), np.uint8)
    source = store(folder, recorded(some, y.get(kind), x=x), kind, () if kind == "keys" else tuple("abcd"))
    batch = source.batch(np.arange(len(some))[::-1].copy())
    starts = np.cumsum(some) - some
    for row, place in enumerate(reversed(range(len(some)))):
        steps = slice(starts[place], starts[place] + some[place])
        real = batch.real[row].numpy()
        assert real.sum() == some[place]
        assert real[: some[place]].all(), "padding stands behind"
        assert np.array_equal(batch.x[row].numpy()[real], x[steps])
        assert not batch.x[row].numpy()[~real].any()
        counted = np.flatnonzero(batch.scored[row].numpy()).tolist()
        wanted = batch.wanted[row].numpy()
        match kind:
            case "number" | "label":
                assert counted == [some[place] - 1], "the last real step"
                assert wanted == y[kind][place]
            case "labels":
                assert counted == list(range(some[place]))
                assert np.array_equal(wanted[real], y[kind][steps])
            case "keys":
                assert counted == list(range(some[place] - 1)), "every real step but the last"
                assert np.array_equal(wanted[counted], x[steps][1:]), "the next frame"
    assert batch.tokens == batch.scored.sum()
    assert batch.wanted.dtype == (torch.float32 if kind in ("number", "keys") else torch.int64)


def test_pixels_lie_as_bytes_and_are_scaled_when_they_are_read(tmp_path: Path) -> None:
    x = np.array([[0], [255], [33], [7]], np.uint8)
    source = store(tmp_path, recorded([2, 2], [0, 1], x=x, scale=PIXELS), "label")
    assert (tmp_path / "store" / "x").read_bytes() == x.tobytes()
    wanted = (x.reshape(2, 2, 1) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(source.batch(np.arange(2)).x, wanted, rtol=1e-5)


def test_a_store_that_is_opened_again_is_the_same(tmp_path: Path) -> None:
    source = store(tmp_path, recorded([2, 3], ["b", "a"]), "label")
    again = Stored.open(tmp_path / "store")
    assert again.fingerprint == source.fingerprint
    assert (again.kind, again.names, again.outputs, again.channels) == ("label", ("a", "b"), 2, 2)
    for name in ("x", "wanted", "scored"):
        both = (getattr(one.batch(np.arange(2)), name) for one in (source, again))
        assert torch.equal(*both)
    other = store(tmp_path, recorded([2, 3], ["a", "b"]), "label")
    assert other.fingerprint != source.fingerprint


def test_a_share_at_the_end_is_held_out(tmp_path: Path) -> None:
    source = store(tmp_path, recorded([2] * 10, list(range(10)), channels=1), "label")
    train, held = source.split(0.25)
    assert [one.batch(np.arange(len(one))).ids for one in (train, held)] == [(1, 2, 3, 4, 5, 6, 7, 8), (9, 10)]
    assert len({source.fingerprint, train.fingerprint, held.fingerprint}) == 3
    with pytest.raises(DataError, match=r"data.held = 0.99 leaves none of 10 examples to learn from; write less"):
        source.split(0.99)


# ---- what is wanted


def test_labels_are_numbered_by_their_names(tmp_path: Path) -> None:
    assert store(tmp_path, recorded([1, 1, 1], ["b", "a", "b"]), "label").batch(np.arange(3)).wanted.tolist() == [
        1,
        0,
        1,
    ]
    source = store(tmp_path, recorded([1, 1, 1], ["b", "a", "b"]), "label", ("b", "c", "a"))
    assert source.batch(np.arange(3)).wanted.tolist() == [0, 2, 0]
    assert source.outputs == 3
    source = store(tmp_path, recorded([1, 1, 1], [4, 0, 2.0]), "label")
    assert source.names == ("0", "1", "2", "3", "4")
    assert store(tmp_path, recorded([1, 1], [1, 0]), "label", ("no", "yes", "perhaps")).outputs == 3


def test_a_label_that_is_unknown_makes_an_example_bad(tmp_path: Path) -> None:
    for y, what in ((["a", "x", "b"], "'x'"), ([0, 7, 1], "'7'")):
        bad = BadLines()
        source = store(tmp_path, recorded([1, 1, 1], y), "label", ("a", "b"), bad=bad)
        assert source.batch(np.arange(2)).ids == (1, 3)
        assert bad.counts == {"with an unknown label": 1}
        with pytest.raises(DataError, match=rf"a.npz, example 2: label {what} is none of a, b; mend it, or set"):
            store(tmp_path, recorded([1, 1, 1], y), "label", ("a", "b"), on_bad="refuse")
    steps = recorded([2, 3, 1], [0, 1, 1, 5, 6, 0])
    with pytest.raises(DataError, match=r"a.npz, example 2: label '5' is none of a, b; mend it"):
        store(tmp_path, steps, "labels", ("a", "b"), on_bad="refuse")
    kept = store(tmp_path, steps, "labels", ("a", "b")).batch(np.arange(2))
    assert kept.ids == (1, 3)
    assert kept.wanted.tolist() == [[0, 1], [0, 0]]


def test_numbers_that_are_none_make_an_example_bad(tmp_path: Path) -> None:
    source = store(tmp_path, recorded([1, 1, 1], [0.5, np.nan, 2]), "number")
    assert source.batch(np.arange(2)).wanted.tolist() == [0.5, 2]
    with pytest.raises(DataError, match=r"a.npz, example 2: y is nan; mend it"):
        store(tmp_path, recorded([1, 1, 1], [0.5, np.nan, 2]), "number", on_bad="refuse")


def test_a_piece_of_one_frame_makes_an_example_bad(tmp_path: Path) -> None:
    x, bad = np.ones((4, 3), np.uint8), BadLines()
    source = store(tmp_path, recorded([1, 3], x=x, channels=3), "keys", bad=bad)
    assert len(source) == 1
    assert bad.counts == {"without a next step": 1}
    with pytest.raises(DataError, match=r"a.npz: no example is left \(1 of 0 examples skipped: 1 without a next step"):
        store(tmp_path, recorded([1], x=x[:1]), "keys")


@pytest.mark.parametrize(
    ("kind", "y", "sentence"),
    [
        ("label", None, 'has no y, where task.kind = "label" wants a label for each example; save it beside x'),
        ("number", None, 'has no y, where task.kind = "number" wants a number for each example'),
        ("labels", [1, 2], 'has a y for each example, where task.kind = "labels" wants a label for each step'),
        ("label", [1] * 5, 'has a y for each step, where task.kind = "label" wants a label for each example'),
        ("number", ["a", "b"], 'y has texts, where task.kind = "number" wants numbers; save it as float32'),
        ("label", [0.5, 1], "y has fractions, where labels were wanted; save whole numbers or texts"),
        ("label", [np.nan, 1], "y has fractions, where labels were wanted"),
        ("label", [-1, 1], "y goes from -1 to 1, where labels are numbered from 0; number them so, or save them as"),
        ("label", ["a", "a"], "y has one label alone, a, and there is nothing to tell; give two or more"),
        ("label", [0, 10**7], "y goes from 0 to 10000000, where labels are numbered from 0"),
        ("keys", None, 'x has other numbers than 0 and 1, where task.kind = "keys" wants to know which keys are down'),
    ],
)
def test_what_does_not_fit_the_kind(kind: str, y: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as told:
        store(tmp_path, recorded([2, 3], y), kind)
    assert f"a.npz: {sentence}" in str(told.value)


def test_keys_have_a_name_each_or_none(tmp_path: Path) -> None:
    found = recorded([2, 2], x=np.ones((4, 3), np.uint8), channels=3)
    assert store(tmp_path, found, "keys").names == ()
    assert store(tmp_path, found, "keys", ("c", "d", "e")).names == ("c", "d", "e")
    with pytest.raises(ConfigError, match=r"data.labels names 2 keys, but a.npz has 3; name each, or leave it out"):
        store(tmp_path, found, "keys", ("c", "d"))


@pytest.mark.data("mnist")
def test_sequential_mnist_is_784_steps_of_one_channel(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    from regard.data.numbers import read_numbers

    files = [data_dir("mnist") / f"t10k-{name}.gz" for name in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    found = read_numbers(files, "test", longest=1000, bad=BadLines())
    source = store(tmp_path, found, "label")
    batch = source.batch(np.arange(64))
    assert batch.x.shape == (64, 784, 1)
    assert (source.outputs, source.names) == (10, tuple("0123456789"))
    assert batch.wanted[:3].tolist() == [7, 2, 1]
    assert batch.tokens == 64
