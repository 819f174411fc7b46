from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from regard.errors import ConfigError, RegardError
from regard.view.capture import Trace
from regard.view.plots import plot, plot_heads

pytest.importorskip("matplotlib")
Make = Callable[..., Trace]
HOSTILE = ["$x$", "</text><script>alert(1)</script>", "a\x00b", "&amp;", "我们", "x" * 60, "\ud800", "<eos>"]


def size(png: Path) -> tuple[int, int]:
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    return width, height


def words(svg: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_both_files_are_written_and_say_what_they_show(make: Make, tmp_path: Path) -> None:
    trace = make()
    png, svg = plot(trace, tmp_path / "new" / "run.v1")
    assert (png.name, svg.name) == ("run.v1.png", "run.v1.svg")
    assert min(size(png)) > 300
    said = words(svg)
    assert {*trace.source, *trace.target, "a run", "decoder.1.cross, mean of 3 heads", "read", "written"} <= {*said}
    assert "which need not be why it answered so" in " ".join(said)
    assert not [path for path in png.parent.iterdir() if path not in (png, svg)]


@pytest.mark.parametrize("draw", [plot, plot_heads])
def test_the_same_trace_gives_the_same_bytes(make: Make, tmp_path: Path, draw: Callable[..., list[Path]]) -> None:
    first, again = draw(make(), tmp_path / "a"), draw(make(), tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_more_tokens_make_a_larger_picture_within_bounds(make: Make, tmp_path: Path) -> None:
    few = size(plot(make(["a"] * 5, ["b"] * 5), tmp_path / "few")[0])
    many = size(plot(make(["a"] * 60, ["b"] * 5), tmp_path / "many")[0])
    assert few[0] < many[0] < 4000
    assert abs(few[1] - many[1]) < 150


def test_tokens_are_written_as_they_are(make: Make, tmp_path: Path) -> None:
    said = words(plot(make(HOSTILE, ["x"], title="a $run$"), tmp_path / "hostile")[1])
    shortened = {"</text><script>alert(1)…", "x" * 23 + "…"}
    assert {"$x$", "a␀b", "&amp;", "我们", "�", "a $run$", *shortened} <= {*said}


def test_each_head_has_its_own_map(make: Make, tmp_path: Path) -> None:
    said = words(plot_heads(make(heads=3), tmp_path / "heads", "decoder.0.attention")[1])
    assert [word for word in said if ", head " in word] == [f"decoder.0.attention, head {head}" for head in range(3)]
    assert said.count("<bos>") == 3


def test_chosen_heads_are_named(make: Make, tmp_path: Path) -> None:
    assert "encoder.0.attention, head 0, 2" in words(
        plot(make(), tmp_path / "some", name="encoder.0.attention", heads=[0, 2])[1]
    )


def test_without_matplotlib_it_is_said_what_to_install(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"plots need matplotlib, .*; run pip install 'regard\[plots\]'"):
        plot(make(), tmp_path / "x")


def test_a_place_that_cannot_be_written_is_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RegardError, match=r"file/x.png: cannot be written: .*; choose another place"):
        plot(make(), tmp_path / "file" / "x")
    (tmp_path / "y.png").mkdir()
    with pytest.raises(RegardError, match=r"y.png: cannot be written: Is a directory; choose another place"):
        plot(make(), tmp_path / "y")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "y.png"}
