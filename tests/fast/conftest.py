"""What the tests of the accelerator share."""

from __future__ import annotations

import pytest

from regard.fast import Unbuilt, library


@pytest.fixture
def accelerator() -> None:
    """Where it cannot be built, a test that wants it is skipped with the reason."""
    try:
        library()
    except Unbuilt as error:
        pytest.skip(str(error))
