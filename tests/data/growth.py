"""`growth.py build FOLDER COUNT` makes a store of short pairs; `growth.py measure FOLDER` tells what a batch costs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from regard.data.writer import RECORD, Writer


def build(folder: Path, count: int) -> None:
    folder.mkdir()
    chance = np.random.default_rng(0)
    writer = Writer(folder, vocabulary=30_000, longest=32)
    for first in range(0, count, 100_000):
        records = np.zeros(min(100_000, count - first), RECORD)
        records["source"] = chance.integers(5, 25, len(records))
        records["target"] = records["source"] + chance.integers(0, 6, len(records))
        records["line"] = np.arange(first, first + len(records))
        size = int((records["source"] + records["target"] + 1).sum())
        writer.add(chance.integers(4, 30_000, size), records)
    writer.finish()


def memory(kind: str) -> float:
    """MB: VmRSS is what the process holds now, VmHWM the most it ever held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(kind))


def measure(folder: Path) -> dict[str, float]:
    import torch

    from regard.data.batch import Batches
    from regard.data.store import Store

    torch.set_num_threads(1)
    batches = Batches(Store.open(folder), tokens=4096)
    chance = np.random.default_rng(1)
    times = []
    for step in chance.integers(0, 3 * len(batches), 1000).tolist():
        start = time.perf_counter()
        batches.batch(step)
        times.append(time.perf_counter() - start)
    return {"resident": memory("VmRSS"), "peak": memory("VmHWM"), "microseconds": 1e6 * float(np.median(times))}


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]), int(sys.argv[3]))
        print(json.dumps({"peak": memory("VmHWM")}))
    else:
        print(json.dumps(measure(Path(sys.argv[2]))))
