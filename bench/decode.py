"""Decoding on a GPU: captured steps against Hugging Face `generate`, plain and with its static cache.

python -m bench.decode                     # all cells, about four minutes on an H200
python -m bench.decode xl-1 base-64-4      # some of them; the others keep their lines in the table
python -m bench.decode xl-1 --fill         # only compiles what is to be compiled, all cells at once
python -m bench.decode --dry               # tiny models on any machine, to see that it runs; nothing is written
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig

from bench.harness import RESULTS, Comparison, Notes, in_common, machine, race
from bench.peers import BOS, EOS, PAD, hugging_face_gpt2, marian, our_gpt2, ours
from regard.core.autoregressive import Autoregressive
from regard.core.linear import pack
from regard.decode import beam, greedy
from regard.decode.captured import Captured, captured
from regard.decode.filters import at_least
from regard.decode.prompt import Act, Replay
from regard.fast import narrow
from regard.fast.kernels import in_bytes
from regard.models.gpt import SIZES

PROMPT, LENGTH, SENTENCE = 32, 128, 30  # tokens of a prompt and of what follows it; of a sentence and its translation
BANDWIDTH = 4.22e12  # bytes a second that an H200 copies, read and written
ROUNDS = 7
Run = Callable[[], list[list[int]]]


@dataclass(frozen=True)
class Cell:
    size: str
    rows: int
    beam: int = 1
    static: bool = False  # the peer's static cache is raced too
    whole: bool = False  # our weights in int8; the peer has none such


CELLS = {
    "xl-1": Cell("gpt2-xl", 1, static=True),
    "xl-1-int8": Cell("gpt2-xl", 1, whole=True),
    "124m-1": Cell("gpt2", 1, static=True),
    "124m-1-int8": Cell("gpt2", 1, whole=True),
    "124m-32": Cell("gpt2", 32, static=True),
    "base-1-1": Cell("base", 1),
    "base-1-4": Cell("base", 1, beam=4),
    "base-64-1": Cell("base", 64, static=True),
    "base-64-4": Cell("base", 64, beam=4, static=True),
}


@dataclass
class Line:
    """What came out of a cell."""

    cell: str
    work: str
    unit: str
    amount: dict[str, float]
    seconds: dict[str, list[float]]
    share: float | None  # of the bandwidth, by the weights alone
    same: float  # of the tokens, before the first that differs from the peer's
    captures: int
    memory: int  # MiB that ours held at most, weights included
    machine: str = field(default_factory=machine)

    @property
    def comparison(self) -> Comparison:
        return Comparison(self.work, self.unit, next(iter(self.amount)), self.amount, self.seconds)


@dataclass(frozen=True)
class Sides:
    """One piece of work for all engines: what each does, what it amounts to, and the model that we do it with."""

    work: str
    unit: str
    amount: float
    model: Autoregressive
    ours: Callable[[Any], Run]
    theirs: dict[str, Run]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("cells", nargs="*", metavar="CELL", help=f"some of {', '.join(CELLS)}; all when left out")
    asked.add_argument("--profile", action="store_true", help="print which kernels take the time of ours")
    asked.add_argument("--fill", action="store_true", help="only compile what is compiled, and keep it")
    asked.add_argument("--dry", action="store_true", help="tiny models, nothing is written")
    given = asked.parse_args()
    if strange := set(given.cells) - set(CELLS):
        asked.error(f"{', '.join(sorted(strange))}: no such cell; known: {', '.join(CELLS)}")
    if not given.dry and not torch.cuda.is_available():
        asked.error("no GPU is here; write --dry to see that the script runs")
    if given.fill:
        fill([name for name in given.cells or CELLS if CELLS[name].static], given.dry)
        return
    for name in given.cells or CELLS:
        before = time.perf_counter()
        line = compare(name, CELLS[name], given.dry, given.profile)
        if line is None:
            continue
        print(f"{name}: {time.perf_counter() - before:.0f} s", flush=True)
        if given.dry:
            print("\n".join(table([line]).splitlines()[4:]), "\ntiny models in fp32 on this machine: no figures")
        else:
            write(line)
    if not given.dry:
        print((RESULTS / "decode-gpu.md").read_text("utf-8"))


def fill(names: Sequence[str], dry: bool) -> None:
    """What the peer compiles, in a process for each of several cells."""
    if len(names) == 1:
        sides_of(CELLS[names[0]], dry)
        return
    command = [sys.executable, "-m", "bench.decode", "--fill", *(["--dry"] if dry else [])]
    for process in [subprocess.Popen([*command, name]) for name in names]:
        process.wait()


def compare(name: str, cell: Cell, dry: bool, profile: bool = False) -> Line | None:
    if dry:
        cell = replace(cell, rows=min(cell.rows, 3))
    sides = sides_of(cell, dry)
    step = Captured(sides.model, repeated if dry else captured, kernels=narrow)
    mine = sides.ours(step)
    if not _goes_ahead(step, mine):
        return None
    engines = {"regard": mine, **sides.theirs}
    found = race(sides.work, sides.unit, {e: _timed(run, sides.amount) for e, run in engines.items()}, **_often(dry))
    if profile:
        print(f"{name}\n{_profile(mine)}", flush=True)
    share = None
    if cell.size != "base":
        share = _bytes(sides.model) / (2 if cell.whole else 1) * found.rate("regard") / cell.rows / BANDWIDTH
    same = in_common(mine(), next(iter(sides.theirs.values()))())
    engines.clear()
    sides.theirs.clear()
    gc.collect()
    memory = _peak(mine)  # without the peer's weights
    assert not dry or cell.whole or same == 1.0, f"{name}: in fp32 only {same:.0%} of the tokens are the same"
    line = Line(name, sides.work, sides.unit, found.work, found.seconds, share, same, step.captures, memory)
    del sides, step, mine, found
    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return line


def sides_of(cell: Cell, dry: bool) -> Sides:
    return (translation if cell.size == "base" else continuation)(cell, dry)


def continuation(cell: Cell, dry: bool) -> Sides:
    """GPT-2 goes on with a prompt; whatever is said, nothing ends it."""
    length = 6 if dry else LENGTH
    size: Any = {"dim": 32, "heads": 2, "layers": 2, "vocab": 97} if dry else SIZES[cell.size]
    device, kind = _device(dry)
    with torch.device(device):
        mine = our_gpt2(**size).eval()
        theirs = hugging_face_gpt2(mine).eval().to(kind)
        mine = pack(mine.to(kind), in_bytes if cell.whole else None)
        prompt = torch.randint(mine.config.vocab or 0, (cell.rows, PROMPT))

    def regard(step: Any) -> Run:
        def run() -> list[list[int]]:
            return [list(h.tokens) for h in greedy(step, mine.start(), prompt, eos=-1, limit=length)]

        return run

    def hugging_face(**settings: Any) -> Run:
        how = GenerationConfig(
            do_sample=False, max_new_tokens=length, pad_token_id=PAD, eos_token_id=None, use_cache=True, **settings
        )

        def run() -> list[list[int]]:
            with torch.inference_mode():
                said = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=how)
            return said[:, PROMPT:].tolist()

        return run

    work = f"GPT-2 {cell.size.removeprefix('gpt2-').removeprefix('gpt2') or '124M'}, batch {cell.rows}"
    work += ", ours in int8" if cell.whole else ""
    return Sides(work, "tokens/s", float(cell.rows * length), mine, regard, _peers(cell, hugging_face))


def translation(cell: Cell, dry: bool) -> Sides:
    """As many tokens out as in; an end before that is forbidden to both."""
    length = 6 if dry else SENTENCE
    device, kind = _device(dry)
    mine = ours("tiny" if dry else cell.size, 97 if dry else 32_000).eval()
    theirs = marian(mine).eval().to(device, kind)
    mine = pack(mine.to(device, kind))
    with torch.device(device):
        source = torch.randint(4, mine.config.vocab or 0, (cell.rows, length))
        prompt = torch.full((cell.rows, 1), BOS)
    search: Any = greedy if cell.beam == 1 else functools.partial(beam, keep=cell.beam)

    def regard(step: Any) -> Run:
        def run() -> list[list[int]]:
            with torch.inference_mode():
                state = step.start(source, None)  # nothing is padded, as the peer finds out by itself
            found = search(step, state, prompt, eos=EOS, limit=length, filters=(at_least(length, EOS),))
            return [list(h.tokens if cell.beam == 1 else h[0].tokens) for h in found]

        return run

    def hugging_face(**settings: Any) -> Run:
        how = GenerationConfig(
            num_beams=cell.beam, do_sample=False, min_new_tokens=length, max_new_tokens=length,
            early_stopping=cell.beam > 1, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS,
            use_cache=True, **settings,
        )  # fmt: skip

        def run() -> list[list[int]]:
            with torch.inference_mode():
                said = theirs.generate(source, attention_mask=torch.ones_like(source), generation_config=how)
            return said[:, 1:].tolist()

        return run

    work = f"translation base, batch {cell.rows}, beam {cell.beam}"
    return Sides(work, "sentences/s", float(cell.rows), mine, regard, _peers(cell, hugging_face))


def _peers(cell: Cell, hugging_face: Callable[..., Run]) -> dict[str, Run]:
    peers = {"Hugging Face generate": hugging_face()}
    if cell.static and _works(static := hugging_face(cache_implementation="static")):
        peers["Hugging Face generate, static cache and compiled"] = static
    return peers


def repeated(act: Act, pool: Any) -> Replay:
    """What stands for a captured graph where there is no GPU."""
    return act


def table(lines: list[Line]) -> str:
    rows = [
        "# Decoding on a GPU against Hugging Face generate",
        "",
        f"GPT-2: {LENGTH} tokens after {PROMPT}, greedy. Translation: 6+6 layers, 512 wide, 32,000 words, {SENTENCE} "
        "tokens in and out. Equal random weights in bf16; reading the prompt or the source is part of it, capturing "
        f"and compiling are not. Bandwidth: the weights' bytes times steps a second, of {BANDWIDTH / 1e12:.2f} TB/s. "
        "Tokens in common: before the first that differs from the peer's.",
        "",
        "| work | engine | median | ours against it (95 % interval) | bandwidth | tokens in common | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = Notes([line.machine for line in lines])
    for line in lines:
        c = line.comparison
        for engine in c.work:
            ratio, ours = "", engine == c.ours
            if not ours:
                ratio = "**{:.2f}×** ({:.2f}–{:.2f})".format(*c.ratio(engine))
            told = (f"{line.share:.1%}" if line.share else "", f"{line.same:.0%}", f"{line.memory:,} MiB")
            rows.append(
                f"| {c.name}{notes.of(line.machine)} | {engine} | {c.rate(engine):,.0f} {c.unit} | {ratio} | "
                f"{' | '.join(told if ours else [''] * 3)} |"
            )
    return "\n".join([*rows, "", *notes])


def write(line: Line) -> None:
    """Into the table, where the lines of cells that were run before stay as they are."""
    place = RESULTS / "decode-gpu.json"
    before = json.loads(place.read_text("utf-8"))["rows"] if place.exists() else []
    known = {row["cell"]: Line(**row) for row in before} | {line.cell: line}
    lines = [known[name] for name in CELLS if name in known]
    RESULTS.mkdir(exist_ok=True)
    place.write_text(json.dumps({"rows": [asdict(one) for one in lines]}, indent=1), "utf-8")
    place.with_suffix(".md").write_text(table(lines), "utf-8")


def _often(dry: bool) -> dict[str, int]:
    return {"rounds": 1, "warm": 1} if dry else {"rounds": ROUNDS, "warm": 1}


def _device(dry: bool) -> tuple[str, torch.dtype]:
    return ("cpu", torch.float32) if dry else ("cuda", torch.bfloat16)


def _goes_ahead(step: Captured, run: Run) -> bool:
    """After one run it has captured what it needs, or a warning has said why not."""
    run()
    if step.broken or not step.captures:
        print(f"left out: {step.record.__name__} steps, which fell back to the plain search", flush=True)
        return False
    return True


def _works(run: Run) -> bool:
    """A peer that cannot be run is told of and left out; the others are raced all the same."""
    try:
        run()
    except Exception as error:
        print(f"left out: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return False
    return True


def _timed(run: Run, amount: float) -> Callable[[], float]:
    def timed() -> float:
        run()
        return amount

    return timed


def _bytes(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _profile(run: Run) -> str:
    with torch.profiler.profile() as found:
        run()
    by = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
    return str(found.key_averages().table(sort_by=by, row_limit=20, max_name_column_width=80))


def _peak(run: Run) -> int:
    if not torch.cuda.is_available():
        return 0
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() // 2**20


if __name__ == "__main__":
    main()
