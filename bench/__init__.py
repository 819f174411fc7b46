"""Side-by-side runs against the peers. Data sets are looked for where `make` and the tests look for them."""

import os
from pathlib import Path

beside = Path(__file__).parents[2] / "shared" / "data"
if beside.is_dir():
    os.environ.setdefault("REGARD_DATA", str(beside))
