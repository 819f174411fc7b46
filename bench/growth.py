"""How time and memory grow: with the length of a text, the rows of a batch, the words written, the size of a corpus.

    python -m bench.growth               # CPU, or the GPU where there is one; about a minute

Every point is measured in a process of its own, so that none inherits another's memory. The exponent is the slope
through the upper half of the points on a doubly logarithmic scale: 0 does not grow, 1 grows in proportion, 2 as the
square.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bench.harness import RESULTS, clock, kind, len_cores, machine, refuse_others
from bench.peers import BOS, EOS, our_gpt2, ours
from regard.core.linear import pack
from regard.data.batch import Batches
from regard.data.store import Store
from regard.data.writer import RECORD, Writer
from regard.decode import beam, greedy
from regard.decode.filters import at_least

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPEATS = 5

Work = Callable[[], object]


@dataclass(frozen=True)
class Curve:
    title: str
    unit: str
    sizes: tuple[int, ...]
    make: Callable[[int, Path], Work]
    """What is measured at a size; the folder is for files."""


def reading(length: int, _: Path) -> Work:
    model, tokens = _gpt().eval(), torch.randint(4, 1000, (1, length), device=DEVICE)

    @torch.inference_mode()
    def work() -> object:
        return model(None, None, tokens)

    return work


def learning(rows: int, _: Path) -> Work:
    model, tokens = _gpt().train(), torch.randint(4, 1000, (rows, 65), device=DEVICE)

    def work() -> None:
        hidden, _ = model(None, None, tokens[:, :-1])
        model.head(hidden, tokens[:, 1:]).total.backward()
        model.zero_grad()

    return work


def writing(count: int, _: Path) -> Work:
    model, prompt = pack(_gpt().eval()), torch.full((1, 1), BOS, device=DEVICE)

    def work() -> object:
        state = model.start(rows=1)
        return greedy(model.step, state, prompt, eos=EOS, limit=count, filters=(at_least(count, EOS),))

    return work


def searching(width: int, _: Path) -> Work:
    model = pack(ours("small", 8000).to(DEVICE).eval())
    source, prompt = torch.randint(4, 8000, (1, 30), device=DEVICE), torch.full((1, 1), BOS, device=DEVICE)

    def work() -> object:
        with torch.inference_mode():
            state = model.start(source, None)
        return beam(model.step, state, prompt, eos=EOS, limit=30, keep=width, filters=(at_least(30, EOS),))

    return work


def gathering(pairs: int, folder: Path) -> Work:
    """A corpus of random pairs, 8 to 40 tokens a side, and batches from all over it."""
    dice = np.random.default_rng(0)
    writer = Writer(folder, vocabulary=8000, longest=64)
    for start in range(0, pairs, 10_000):
        records = np.zeros(10_000, RECORD)
        records["source"], records["target"] = dice.integers(8, 41, (2, 10_000))
        records["line"] = np.arange(start, start + 10_000)
        many = int((records["source"] + 1 + records["target"]).sum())  # a target has its beginning mark besides
        writer.add(dice.integers(4, 8000, many), records)
    writer.finish()
    batches = Batches(Store.open(folder), tokens=4096)
    steps = iter(range(0, 10**9, 7919))
    return lambda: [batches.batch(next(steps)) for _ in range(20)]


CURVES = {
    "reading": Curve("reading one text", "tokens", (128, 512, 1024, 2048), reading),
    "learning": Curve("a training step", "rows of 64 tokens", (1, 4, 16, 32), learning),
    "writing": Curve("writing, word by word", "tokens", (32, 128, 256, 512), writing),
    "searching": Curve("beam search, 30 words", "hypotheses", (1, 4, 8, 16), searching),
    "gathering": Curve("twenty batches", "pairs in the corpus", (10_000, 100_000, 1_000_000), gathering),
}


def main(asked: Sequence[str]) -> None:
    if asked[:1] == ["--point"]:
        print(json.dumps(point(CURVES[asked[1]], int(asked[2]))))
        return
    refuse_others(asked, [])
    with ThreadPoolExecutor(1 if DEVICE == "cuda" else len_cores()) as side_by_side:  # CPU time is each one's own
        asked_of = {
            name: [side_by_side.submit(elsewhere, name, size) for size in curve.sizes] for name, curve in CURVES.items()
        }
        write({name: [point.result() for point in points] for name, points in asked_of.items()})


def elsewhere(name: str, size: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.growth", "--point", name, str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    seconds, memory = json.loads(done.stdout)
    print(f"{name} {size:,}: {seconds * 1000:.1f} ms, {memory:.1f} MB", flush=True)
    return seconds, memory


def point(curve: Curve, size: int) -> tuple[float, float]:
    """Seconds at best, and MB at most while it works for the first time, beyond what was there before."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        work = curve.make(size, Path(scratch))
        forget_peak()
        before = memory("VmRSS")
        work()
        peak = memory("VmHWM")
        took = []
        for _ in range(REPEATS):
            begun = now()
            work()
            took.append(now() - begun)
        return min(took), peak - before


def now() -> float:
    """On a CPU the time that it worked for us: other work on the machine does not count."""
    return clock() if DEVICE == "cuda" else time.process_time()


def forget_peak() -> None:
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the largest so far becomes what there is now


def memory(which: str) -> float:
    """In MB: what is held now (VmRSS), or was held at most (VmHWM)."""
    if DEVICE == "cuda":
        return (torch.cuda.memory_allocated() if which == "VmRSS" else torch.cuda.max_memory_allocated()) / 1e6
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(which))


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Of the upper half of the points, where what is constant matters least."""
    half = (len(sizes) - 1) // 2
    x, y = ([math.log(max(v, 1e-9)) for v in some[half:]] for some in (sizes, values))
    return statistics.linear_regression(x, y).slope


def write(found: dict[str, list[tuple[float, float]]]) -> None:
    lines = [
        "# How time and memory grow", "",
        "One thread, a process for each point; a GPT of 4 layers, 256 wide, and the small Transformer, by PyTorch "
        "without the accelerator or captured steps. Memory is what is held at most while it works, beyond model and "
        "inputs.", "",
        "| work | from | to | time | grows with the power | memory | with the power |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, points in found.items():
        curve = CURVES[name]
        (first, least), (last, most) = points[0], points[-1]
        time_power, memory_power = (exponent(curve.sizes, some) for some in zip(*points, strict=True))
        lines.append(
            f"| {curve.title} | {curve.sizes[0]:,} {curve.unit} | {curve.sizes[-1]:,} | {first * 1000:.1f} → "
            f"{last * 1000:.1f} ms | **{time_power:.2f}** | {least:.1f} → {most:.1f} MB | **{memory_power:.2f}** |"
        )
    place = RESULTS / f"growth-{kind()}"
    text = "\n".join([*lines, "", f"![The same as a picture]({place.name}.png)", "", machine(), ""])
    print(text)
    place.with_suffix(".md").write_text(text, "utf-8")
    rows = {name: {"sizes": CURVES[name].sizes, "points": points} for name, points in found.items()}
    place.with_suffix(".json").write_text(json.dumps({"machine": machine(), "curves": rows}, indent=1), "utf-8")
    draw(found, place.with_suffix(".png"))


def draw(found: dict[str, list[tuple[float, float]]], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    from regard.view import plots

    with plots.style():
        figure = Figure((3.2 * len(found), 6.0), layout="constrained")
        rows = figure.subplots(2, len(found))
        for column, (name, points) in enumerate(found.items()):
            curve, (seconds, megabytes) = CURVES[name], zip(*points, strict=True)
            for axes, values, unit in zip(
                rows[:, column], ([1000 * s for s in seconds], megabytes), ("ms", "MB"), strict=True
            ):
                axes.set_ylabel(unit)
                axes.loglog(curve.sizes, values, "o-", markersize=4)
                axes.set_xticks(curve.sizes, [_short(size) for size in curve.sizes])
                ends = [min(values), max(values)] if max(values) > 1.3 * min(values) else [max(values)]
                axes.set_yticks(ends, [f"{value:.3g}" for value in ends])
                axes.set_ylim(min(values) * 0.4, max(values) * 2.5)
                for axis in (axes.xaxis, axes.yaxis):
                    axis.set_minor_locator(NullLocator())
                axes.text(0.05, 0.9, f"power {exponent(curve.sizes, values):.2f}", transform=axes.transAxes)
                axes.grid(color="0.9")
            rows[0, column].set_title(curve.title)
            rows[1, column].set_xlabel(curve.unit)
        figure.savefig(path, dpi=110)


def _short(size: int) -> str:
    return f"{size // 1000}k" if size >= 10_000 else f"{size:,}"


def _gpt() -> torch.nn.Module:
    return our_gpt2(vocab=1000, dim=256, heads=4, layers=4, context=4096).to(DEVICE)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
