"""The page on speed says what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from bench import goals
from bench.goals import HEAD, PAGE, PLACES, Goal, met, put_in, table

GOAL = Goal("it works", "fast", "small, batch 1, beam 1", "CTranslate2 int8", 1.5)


def test_the_page_on_speed_has_the_figures_of_the_tables() -> None:
    lines = "\n".join(table())
    assert lines in PAGE.read_text("utf-8"), "its table is of other races; run python -m bench.goals"


@pytest.mark.parametrize(("kinds", "of"), PLACES.items())
def test_each_goal_was_raced(kinds: tuple[str, ...], of: list[Goal]) -> None:
    """A peer that came later wherever there was such a machine since."""
    missing = {(goal.peer, kind) for goal in of for kind in kinds if goal.reached(kind) is None}
    assert missing <= {(goals.STATIC, kind) for kind in ("cpu-zen4", "cpu-avx2", "cpu-amx")}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({"cpu": (2.0, 1.5, 3.0)}, "yes"),
        ({"cpu": (2.0, 1.4, 3.0)}, "by the median"),
        ({"cpu": (1.4, 1.3, 3.0)}, "no"),
        ({"cpu": (2.0, 1.6, 3.0), "cpu-avx2": (1.4, 1.3, 1.5)}, "Zen 5 yes; AVX2 no"),
        ({"cpu": (1.4, 1.3, 1.5), "cpu-avx2": (1.4, 1.3, 1.5)}, "no"),
    ],
)
def test_a_goal_is_met_by_the_whole_interval(found: dict[str, tuple[float, float, float]], verdict: str) -> None:
    assert met(GOAL, found) == verdict


def test_a_table_takes_the_place_of_the_one_before() -> None:
    page = f"# Speed\n\n{HEAD}\n|---|\n| old |\n\nWhat follows.\n"
    assert put_in(page, [HEAD, "|---|", "| new |"]) == f"# Speed\n\n{HEAD}\n|---|\n| new |\n\nWhat follows.\n"
    with pytest.raises(SystemExit, match="has no table that begins with"):
        put_in("# Speed\n", [])


def test_the_picture_is_of_the_same_figures(tmp_path: Path) -> None:
    """They are written into it."""
    image = pytest.importorskip("PIL.Image")
    goals.draw(tmp_path / "speed.png")
    for picture in (tmp_path / "speed.png", goals.PICTURE):
        assert image.open(picture).text["Description"] == "\n".join(table()), "run python -m bench.goals"
