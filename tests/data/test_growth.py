"""Neither memory nor the cost of a batch grows with the corpus."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def growth(*arguments: object) -> Any:
    command = [sys.executable, str(Path(__file__).with_name("growth.py")), *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.storm
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_ten_million_pairs_cost_what_ten_thousand_do(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    small, large = growth("build", few, 10_000), growth("build", many, 10_000_000)
    assert large["peak"] < small["peak"] + 200
    rounds = [(growth("measure", few), growth("measure", many)) for _ in range(3)]
    print({"build": (small, large), "batches": rounds})
    for one, other in rounds:
        assert other["peak"] < one["peak"] + 200
    ratio = min(other["microseconds"] / one["microseconds"] for one, other in rounds)
    assert ratio < 1.5
