"""What the page may cost at 12 layers × 12 heads × 512 tokens; times with a margin, for a busy machine."""

from __future__ import annotations

import pytest

MARGIN = 3.0


@pytest.mark.storm
def test_the_page_keeps_its_budgets() -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("playwright")
    from browsing import PATH

    if PATH is None:
        pytest.skip("no Chromium is installed: the page's budgets were NOT measured")
    from bench.page import BUDGETS, large, measure, served

    with served(large()) as address:
        found = measure(address)
    over = {
        name: found[name] for name, most in BUDGETS.items() if found[name] > most * (MARGIN if " ms" in name else 1.0)
    }
    assert over == {}
