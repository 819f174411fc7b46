from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from regard.errors import ConfigError
from regard.view.capture import Trace
from regard.view.scale import VIRIDIS, viridis
from regard.view.terminal import ASCII, choose_ink, draw, panels

Make = Callable[..., Trace]
LONG = [f"Donaudampfschiff{i}" for i in range(30)]
CHINESE = ["我们", "喜欢", "在", "北京", "大学", "学习", "自然语言处理", "。", "<eos>"]
COMBINED = ["e\u0301te\u0301", "\u0301", "", "नमस्ते", "👩\u200d🔬", "a\tb", "مرحبا"]


def lines(trace: Trace, width: int, **how: Any) -> list[str]:
    screen = io.StringIO()
    Console(width=width, color_system=None, file=screen, force_terminal=True).print(draw(trace, **how))
    return screen.getvalue().splitlines()


def segments(trace: Trace, width: int) -> list[list[Segment]]:
    console = Console(width=width, color_system="truecolor", file=io.StringIO(), force_terminal=True)
    return console.render_lines(draw(trace), pad=False)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("tokens", [["a", "b"], LONG, CHINESE, COMBINED], ids=["short", "long", "chinese", "combined"])
def test_no_line_is_wider_than_the_terminal(make: Make, tokens: list[str], width: int) -> None:
    assert max(map(cell_len, lines(make(LONG, tokens), width))) <= width
    drawn = lines(make(tokens, LONG), width)
    assert max(map(cell_len, drawn)) <= width
    count = sum("columns " in line for line in drawn) or 1
    assert sum(line.lstrip().startswith("Donaud") for line in drawn) == count * len(LONG)


@settings(max_examples=60, deadline=None)
@given(
    source=st.lists(st.text(max_size=30), min_size=1, max_size=25),
    target=st.lists(st.text(max_size=30), min_size=1, max_size=4),
    width=st.integers(12, 100),
)
def test_whatever_the_tokens_are_nothing_steers_the_terminal(
    make: Make, source: list[str], target: list[str], width: int
) -> None:
    drawn = lines(make(source, target), width)
    assert max(map(cell_len, drawn)) <= width
    assert "\x1b" not in "".join(drawn).replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
    assert not any(mark in line for line in drawn for mark in "\u202e\u2066\r\b\x9b")


def test_a_width_that_was_asked_for_is_kept(make: Make) -> None:
    screen = io.StringIO()
    Console(width=200, color_system=None, file=screen).print(draw(make(LONG, LONG), width=50))
    assert max(map(cell_len, screen.getvalue().splitlines())) <= 50


def test_every_column_is_drawn_once(make: Make) -> None:
    for count in range(1, 40):
        for room in range(-1, 45):
            found = panels(count, room)
            assert [column for panel in found for column in panel] == list(range(count))
            assert all(0 < len(panel) <= max(room, 1) for panel in found)
            assert max(map(len, found)) - min(map(len, found)) <= 1
    drawn = "\n".join(lines(make(LONG, ["x"]), 40))
    assert "columns 1 to 15 of 30" in drawn
    assert "columns 16 to 30 of 30" in drawn


def test_a_column_can_be_read_from_top_to_bottom(make: Make) -> None:
    trace = make(["three", "old", "长城"], ["x", "y"])
    heading, *upright = lines(trace, 80)[:6]
    assert "decoder.1.cross, mean of 3 heads" in heading
    assert "".join(line[2] for line in upright).strip() == "three"
    assert "".join(line[4] for line in upright).strip() == "old"
    assert [line[6] for line in upright][-2:] == ["长", "城"]


def test_without_colour_denser_is_more() -> None:
    weights = np.array([[[0.0, 0.25, 0.5, 0.75, 1.0]]], np.float32)
    drawn = lines(Trace(tuple("abcde"), ("x",), {"decoder.0.cross": weights}), 80)
    assert "x · ░░▒▒▓▓██" in drawn
    assert "weight 0 · ░░▒▒▓▓██ 1.00, denser is more" in drawn
    assert "rows: what was written; columns: what was read" in drawn


def test_with_colour_the_background_says_the_weight(make: Make) -> None:
    trace = make()
    weights = trace.alignment()
    drawn = [line for line in segments(trace, 80) if line and line[0].text.split() == ["Haus"]]
    assert len(drawn) == 1
    found = "".join(s.style.bgcolor.name * (len(s.text) // 2) for s in drawn[0] if s.style and s.style.bgcolor)
    assert found == "".join(viridis(w / weights.max()) for w in weights[2])


@pytest.mark.parametrize("name", ["encoder.0.attention", "decoder.0.attention"])
def test_the_legend_says_what_rows_and_columns_are(make: Make, name: str) -> None:
    last = lines(make(), 80, name=name, head=1)
    says = {"encoder.0.attention": "rows: what was read; columns: what was read"}
    assert says.get(name, "rows: what was written; columns: what had been written") in last
    assert any(f"a run, {name}, head 1" in line for line in last)


def test_where_nothing_was_read_first_rows_came_one_behind_the_other() -> None:
    trace = Trace((), ("b", "good"), {"blocks.0.attention": np.ones((1, 2, 2), np.float32)}, start="a")
    assert "rows: what came next; columns: what had come" in lines(trace, 80)


def test_a_terminal_of_few_letters_gets_letters_that_it_has() -> None:
    console = Console(color_system=None, file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert choose_ink(console, console.options) is ASCII
    assert ASCII.paint(1.0).plain.isascii()


def test_silenced_heads_draw_nothing_but_draw() -> None:
    trace = Trace(("a",), ("b",), {"decoder.0.cross": np.zeros((1, 1, 1), np.float32)})
    assert "b · " in lines(trace, 40)


def test_a_head_that_is_not_there_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"decoder.1.cross has heads 0 to 2, but head 7 was asked for"):
        draw(make(), head=7)


def test_the_scale_is_viridis() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    theirs = matplotlib.colormaps["viridis"]
    for share in np.linspace(0, 1, 101):
        colour = bytes.fromhex(viridis(float(share))[1:])
        assert np.abs(np.array(theirs(share)[:3]) * 255 - np.array([*colour])).max() <= 0.03 * 255
    assert (viridis(-1), viridis(2)) == (VIRIDIS[0], VIRIDIS[-1])
