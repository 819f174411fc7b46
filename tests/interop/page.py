"""The Python of docs/interop.md, which is to run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"


def run_page(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the one block prints that speaks of something."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (found,) = [block for block in blocks if word in block]
    capsys.readouterr()
    exec(compile(found, "interop.md", "exec"), {})
    return capsys.readouterr().out.strip()
