"""Files of numbers: what was written is read, and whatever cannot be used is told in a sentence."""

from __future__ import annotations

import gzip
import lzma
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from regard.data.numbers import (
    AS_IT_IS,
    PIXELS,
    Recorded,
    order_of,
    permuted,
    read_arrays,
    read_idx,
    read_inputs,
    read_numbers,
)
from regard.data.text import BadLines
from regard.errors import DataError


def write_idx(path: Path, array: np.ndarray) -> Path:
    sides = b"".join(side.to_bytes(4, "big") for side in array.shape)
    data = bytes([0, 0, 8, array.ndim]) + sides + array.tobytes()
    opener: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    with opener.get(path.suffix, open)(path, "wb") as file:
        file.write(data)
    return path


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def read(*files: Path, longest: int = 1000, bad: BadLines | None = None, **how: Any) -> Recorded:
    return read_numbers(
        files, how.pop("split", "train"), longest=longest, bad=BadLines() if bad is None else bad, **how
    )


# ---- idx


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_images_are_read_pixel_by_pixel(suffix: str, tmp_path: Path) -> None:
    images, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([7, 3], np.uint8)
    files = write_idx(tmp_path / f"images{suffix}", images), write_idx(tmp_path / f"labels{suffix}", labels)
    for found in (read(*files), read(*files[::-1])):
        assert found.x.dtype == np.uint8, "pixels stay bytes"
        assert found.x[:, 0].tolist() == list(range(24))
        assert found.lengths.tolist() == [12, 12]
        assert found.y.tolist() == [7, 3]
        assert found.scale == PIXELS
    assert [example.shape for example in read_inputs(files[0])] == [(12, 1), (12, 1)]


def test_pixels_are_brought_to_the_published_mean_and_spread() -> None:
    times, plus = PIXELS
    for pixel in (0, 33, 255):
        assert times * pixel + plus == pytest.approx((pixel / 255 - 0.1307) / 0.3081)


@given(drawn.arrays(np.uint8, drawn.array_shapes(min_dims=1, max_dims=4)))
def test_idx_and_back(array: np.ndarray) -> None:
    with TemporaryDirectory() as folder:
        assert np.array_equal(read_idx(write_idx(Path(folder) / "array", array)), array)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "begins with nothing, not as an idx file of bytes, which has 00 00 08 and the number of its sides"),
        (b"PK\3\4", "begins with 50 4b 03 04, not as an idx file of bytes"),
        (b"\0\0\x0d\1", "begins with 00 00 0d 01, not as an idx file of bytes"),
        (b"\0\0\x08\0", "begins with 00 00 08 00, not as an idx file"),
        (b"\0\0\x08\2\0\0\0\2", "its head says 0 bytes of shape (2,), but there are 0; restore it"),
        (b"\0\0\x08\1\0\0\0\5abcd", "its head says 5 bytes of shape (5,), but there are 4; restore it"),
        (b"\0\0\x08\1\0\0\0\5abcdef", "its head says 5 bytes of shape (5,), but there are more; restore it"),
        (
            b"\0\0\x08\2\xff\xff\xff\xff\xff\xff\xff\xff",
            "18,446,744,065,119,617,025 bytes of shape (4294967295, 4294967295)",
        ),
    ],
)
def test_what_is_no_idx(data: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(data)
    with pytest.raises(DataError) as told:
        read_idx(tmp_path / "images")
    assert sentence in str(told.value)


def test_a_damaged_gz(tmp_path: Path) -> None:
    (tmp_path / "no.gz").write_bytes(b"no gz")
    whole = write_idx(tmp_path / "half.gz", np.zeros((9, 9), np.uint8)).read_bytes()
    (tmp_path / "half.gz").write_bytes(whole[:-12])
    for name in ("no.gz", "half.gz"):
        with pytest.raises(
            DataError, match=rf"{name}: not a whole .gz file \(.*; compress it again, or name the plain"
        ):
            read_idx(tmp_path / name)


def test_images_and_labels_belong_together(tmp_path: Path) -> None:
    images = write_idx(tmp_path / "images", np.zeros((2, 3, 4), np.uint8))
    labels = write_idx(tmp_path / "labels", np.zeros(3, np.uint8))
    wanted = r"where labels \(n,\) and images \(n, rows, columns\) were wanted"
    for files in ((images, labels), (images, images), (labels, labels)):
        with pytest.raises(DataError, match=rf"idx files of shapes .*, {wanted}"):
            read(*files)


# ---- .npz


def test_an_npz_is_read_as_it_is(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float64).reshape(2, 3, 2)
    found = read(write_npz(tmp_path / "a.npz", x=x, y=[[0.5], [1.5]]))
    assert found.x.dtype == np.float32
    assert np.array_equal(found.x, x.reshape(6, 2))
    assert found.y.tolist() == [0.5, 1.5]
    assert found.scale == AS_IT_IS
    flat = read(write_npz(tmp_path / "b.npz", x=x[..., 0].astype(np.uint8), y=[1, 2]))
    assert flat.x.dtype == np.uint8
    assert flat.x[:, 0].tolist() == [0, 2, 4, 6, 8, 10]
    assert read(write_npz(tmp_path / "c.npz", x=x > 4, y=["a", "b"])).x.dtype == np.uint8


def test_lengths_cut_the_padding_off(tmp_path: Path) -> None:
    x, y = np.array([[1, 2, np.nan], [3, 4, 5]]), np.array([[0, 1, -9], [1, 0, 1]])
    found = read(write_npz(tmp_path / "a.npz", x=x, y=y, lengths=[2, 3]))
    assert found.x[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert found.y.tolist() == [0, 1, 1, 0, 1]
    assert found.stepwise
    assert [example.tolist() for example in read_inputs(tmp_path / "a.npz")] == [[[1], [2]], [[3], [4], [5]]]


def wrong_npz() -> dict[str, tuple[dict[str, Any], str]]:
    x = np.zeros((2, 3))
    return {
        "nothing": ({}, "has nothing, but no x; save it with np.savez('a.npz', x=…, y=…)"),
        "no x": ({"z": x, "y": [1, 2]}, "has z, y, but no x; save it with np.savez"),
        "texts": ({"x": [["a"]]}, "x is of type <U1, where numbers were wanted; save it as float32 or uint8"),
        "complex": ({"x": x * 1j}, "x is of type complex128, where numbers were wanted"),
        "one side": (
            {"x": [1.0]},
            "x has shape (1,), where (examples, steps, channels) or (examples, steps) was wanted",
        ),
        "four sides": ({"x": np.zeros((1, 1, 1, 1))}, "x has shape (1, 1, 1, 1), where (examples, steps, channels)"),
        "empty": ({"x": np.zeros((0, 3))}, "x has shape (0, 3), where (examples, steps, channels)"),
        "y of another count": ({"x": x, "y": [1, 2, 3]}, "y has shape (3,), where (2,) or (2, 3) was wanted, one for"),
        "y of other steps": ({"x": x, "y": np.zeros((2, 4))}, "y has shape (2, 4), where (2,) or (2, 3) was wanted"),
        "y of no kind": ({"x": x, "y": x[:, 0] * 1j}, "y is of type complex128, where numbers or texts were wanted"),
        "lengths of another count": ({"x": x, "lengths": [1]}, "lengths is int64 of shape (1,), where whole numbers"),
        "lengths with fractions": ({"x": x, "lengths": [1.5, 2]}, "lengths is float64 of shape (2,), where whole num"),
        "no length": ({"x": x, "lengths": [0, 2]}, "lengths go from 0 to 2, but x has 3 steps; give 1 to 3"),
        "too much length": ({"x": x, "lengths": [1, 4]}, "lengths go from 1 to 4, but x has 3 steps; give 1 to 3"),
    }


@pytest.mark.parametrize("name", wrong_npz())
def test_an_npz_of_another_form(name: str, tmp_path: Path) -> None:
    arrays, sentence = wrong_npz()[name]
    path = write_npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError) as told:
        read(path)
    assert str(told.value).startswith(f"{path}: ")
    assert sentence in str(told.value)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([None, {}], object), allow_pickle=True)
    with pytest.raises(
        DataError, match=r"a.npz: cannot be read as .npz \(Object arrays cannot be loaded.*; write it with"
    ):
        read(tmp_path / "a.npz")


def test_what_is_no_npz(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    whole = write_npz(tmp_path / "half.npz", x=np.zeros((40, 40))).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("x.npy", b"not an array")
    for name in ("text", "half", "other"):
        with pytest.raises(DataError, match=rf"{name}.npz: cannot be read as .npz \(.*\); write it with np.savez"):
            read_arrays(tmp_path / f"{name}.npz")
    with pytest.raises(DataError, match=r"nowhere.npz: no such file; name one that is there"):
        read(tmp_path / "nowhere.npz")


@pytest.mark.parametrize("names", [[], ["a.npz", "b.npz"], ["a.mat", "b"], ["one"], ["a", "b", "c"]])
def test_files_that_make_no_set(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"give one .npz, one .mat of music, or two idx files, images and labels"):
        read(*(tmp_path / name for name in names))


# ---- examples that cannot be used


def test_bad_examples_are_counted_and_named(tmp_path: Path) -> None:
    x = np.zeros((4, 3, 1))
    x[1, 2], x[3, 0] = np.inf, 1e300
    path, bad = write_npz(tmp_path / "a.npz", x=x, y=[1, 2, 3, 4], lengths=[1, 3, 3, 1]), BadLines()
    found = read(path, longest=2, bad=bad)
    assert found.numbers.tolist() == [1]
    assert found.y.tolist() == [1]
    assert found.x.shape == (1, 1)
    assert str(bad) == "3 of 4 examples skipped: 2 with a number that is none (examples 2, 4), 1 too long (example 3)"
    go_on = 'mend it, or set data.bad_lines = "skip" to go on without such examples'
    with pytest.raises(DataError, match=f"a.npz, example 2: x has a number that is not finite; {go_on}"):
        read(path, on_bad="refuse")
    with pytest.raises(DataError, match=r"a.npz, example 3: 3 steps where data.longest is 2; mend it"):
        read(write_npz(tmp_path / "a.npz", x=np.zeros((3, 3)), lengths=[1, 1, 3]), longest=2, on_bad="refuse")
    with pytest.raises(
        DataError, match=r"a.npz: no example is left \(3 of 3 examples skipped: 3 too long .*give other"
    ):
        read(write_npz(tmp_path / "a.npz", x=np.zeros((3, 3))), longest=2)


# ---- the order of steps


@given(st.integers(1, 900), st.integers(0, 5))
def test_an_order_has_every_step_once(steps: int, seed: int) -> None:
    order = order_of(steps, seed)
    assert sorted(order.tolist()) == list(range(steps))
    assert np.array_equal(order, order_of(steps, seed))


def test_an_order_is_a_random_one_and_another_for_another_seed() -> None:
    orders = [order_of(784, seed) for seed in range(20)]
    for one, other in pairwise(orders):
        assert (one == other).sum() < 10
        assert abs(np.corrcoef(one, np.arange(784))[0, 1]) < 0.15
        assert (np.diff(one) == 1).sum() < 10, "neighbours do not stay neighbours"


def test_all_examples_are_permuted_alike(tmp_path: Path) -> None:
    x = np.arange(30, dtype=np.float32).reshape(3, 5, 2)
    found = permuted(read(write_npz(tmp_path / "a.npz", x=x, y=[0, 1, 0])), 4, "a.npz")
    assert np.array_equal(found.x.reshape(3, 5, 2), x[:, order_of(5, 4)])
    wanted = "data.permute is for examples of equally many steps, with one answer each; leave it out"
    for more in ({"y": np.zeros((3, 5))}, {"lengths": [5, 4, 5]}):
        with pytest.raises(DataError, match=f"a.npz: {wanted}"):
            permuted(read(write_npz(tmp_path / "a.npz", x=x, **more)), 4, "a.npz")


# ---- real sets


@pytest.mark.data("mnist")
def test_mnist(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("mnist")
    found = read(*(folder / f"t10k-{name}.gz" for name in ("images-idx3-ubyte", "labels-idx1-ubyte")))
    assert found.x.shape == (7_840_000, 1)
    assert (found.lengths == 784).all()
    assert found.y[:5].tolist() == [7, 2, 1, 0, 4]
    times, plus = PIXELS
    assert found.x.mean() * times + plus == pytest.approx(0, abs=0.02)
    assert found.x.std() * times == pytest.approx(1, abs=0.02)


@pytest.mark.data("poly_music")
def test_music(data_dir: Callable[[str], Path]) -> None:
    pytest.importorskip("scipy.io", reason="reading .mat needs regard[music]")
    path = data_dir("poly_music") / "JSB_Chorales.mat"
    for split, count in (("train", 229), ("valid", 76), ("test", 77)):
        found = read(path, split=split)
        assert len(found.lengths) == count
        assert found.x.shape == (found.lengths.sum(), 88)
        assert found.x.dtype == np.uint8
        assert found.channels == tuple(map(str, range(21, 109)))
    assert len(read_inputs(path)) == 77
