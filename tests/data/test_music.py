"""Music as words: nothing is lost, and every chord can be spelt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.music import KEYS, chorales, to_frames, to_text
from regard.errors import DataError, RegardError

PIECES = st.lists(st.sets(st.integers(0, KEYS - 1), max_size=6), max_size=12)


@given(PIECES)
def test_frames_to_words_and_back(piece: list[set[int]]) -> None:
    """Rests too."""
    frames = np.zeros((len(piece), KEYS), bool)
    for frame, keys in zip(frames, piece, strict=True):
        frame[list(keys)] = True
    assert np.array_equal(to_frames(to_text(frames).split()), frames)


def test_a_chord_is_spelt_from_low_to_high_in_midi_numbers() -> None:
    frames = np.zeros((2, KEYS), bool)
    frames[0, [43, 39, 46]] = True  # the fortieth key of a piano is middle c
    assert to_text(frames) == "60 64 67 . ."


def test_what_a_model_writes_sounds_even_if_it_is_no_fair_copy() -> None:
    assert np.array_equal(to_frames(["64", "60", "60", ".", "62"]), to_frames(["60", "64", ".", "62", "."]))


def test_words_and_frames_that_are_no_music() -> None:
    for word in ("20", "109", "c", "²"):
        with pytest.raises(DataError, match=f"'{word}' is no word of music; write a note from 21 to 108 or '.'"):
            to_frames([word])
    with pytest.raises(DataError, match=r"frames of shape \[3, 87\] where \[frames, 88\] was wanted; give one row"):
        to_text(np.zeros((3, 87), bool))


def test_without_scipy_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(RegardError, match=r"reading .mat needs scipy; write pip install 'regard\[music\]'"):
        chorales(Path("JSB_Chorales.mat"), "train")


@pytest.mark.data("poly_music")
def test_the_chorales_of_bach(data_dir: Callable[[str], Path]) -> None:
    loadmat = pytest.importorskip("scipy.io", reason="reading .mat needs regard[music]").loadmat
    path = data_dir("poly_music") / "JSB_Chorales.mat"
    for split, count in (("train", 229), ("valid", 76), ("test", 77)):
        texts = chorales(path, split)  # type: ignore[arg-type]
        assert len(texts) == count
        for text, frames in zip(texts, loadmat(path)[f"{split}data"].flatten(), strict=True):
            assert np.array_equal(to_frames(text.split()), frames > 0)


def test_files_that_are_no_chorales(tmp_path: Path) -> None:
    savemat = pytest.importorskip("scipy.io", reason="reading .mat needs regard[music]").savemat
    savemat(tmp_path / "other.mat", {"traindata": np.zeros(3)})
    (tmp_path / "text.mat").write_text("no matrix")
    with pytest.raises(DataError, match=r"nowhere.mat: no such file; name one that is there"):
        chorales(tmp_path / "nowhere.mat", "train")
    with pytest.raises(
        DataError, match=r"other.mat: has no validdata; name a .mat with traindata, validdata and testd"
    ):
        chorales(tmp_path / "other.mat", "valid")
    for name in ("text.mat", "other.mat"):
        with pytest.raises(DataError, match=f"{name}: cannot be read as chorales .*; restore the file"):
            chorales(tmp_path / name, "train")
