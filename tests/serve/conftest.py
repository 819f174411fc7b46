from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """Two runs that rewrite, one that goes on, one that tells labels, one that fills masks."""
    with serving("rewrite", "language", "classify", "masked", "recurrent") as served:
        yield served
