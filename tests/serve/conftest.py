from __future__ import annotations

from collections.abc import Iterator

import pytest
from served import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A run that rewrites, one that goes on, one that tells labels, one that fills masks."""
    with serving("rewrite", "language", "classify", "masked") as served:
        yield served
