"""What watching costs: a forward pass of the base model, alone and while one attention is watched, all heads; and on a
CPU an answer of a small model that was loaded, whose search in one call steps aside for those who watch.

python -m bench.watch
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch

from bench.harness import Comparison, best_threads, len_cores, race, refuse_others, report, threads_told
from bench.peers import BOS, EOS, ours
from regard.config import DecodeConfig
from regard.core.watch import watch
from regard.fast import prepare
from regard.tasks.searching import search

KINDS = {"cpu": [torch.float32], "cuda": [torch.float32, torch.bfloat16]}
LENGTH = 30  # tokens of a source and of an answer


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len_cores())
    found = [forward(device, kind) for kind in KINDS[device]]
    note = "All heads and queries of what is watched; the ratio is the price (1.00× is free)."
    if device == "cpu":
        found += [answer(arithmetic) for arithmetic in ("fp32", "int8")]
        note += (
            f" An answer: one sentence, {LENGTH} tokens in and out, greedy, of the small model as regard.load prepares "
            "it. Alone it is searched for by the accelerator in one call; while anything is watched, step by step. "
            "Each with its best number of threads (in brackets)."
        )
    report("watch", "What watching costs", note, found)


def forward(device: str, kind: torch.dtype) -> Comparison:
    rows, length = 16 if device == "cuda" else 1, 512
    model = ours("base", 32_000).to(device, kind).eval()
    source = torch.randint(4, 32_000, (rows, length), device=device)
    real = torch.ones_like(source, dtype=torch.bool)

    @torch.inference_mode()
    def alone() -> float:
        model(source, real, source)
        return float(rows * length)

    engines = {
        "nobody watches": alone,
        "last cross-attention": partial(watched, model, "decoder.5.cross", alone),
        "one encoder attention": partial(watched, model, "encoder.2.attention", alone),
        "all eighteen": partial(watched, model, "*", alone),
    }
    name = f"base forward, {rows} × {length} tokens" + (", bf16" if kind == torch.bfloat16 else "")
    return race(name, "tokens/s", engines, rounds=9, warm=3)


def answer(arithmetic: str) -> Comparison:
    """What a loaded run does with a sentence, once it is tokens."""
    model = prepare(ours("small", 8_000).eval(), arithmetic)
    source = torch.randint(4, 8_000, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    how = DecodeConfig(beam=1, shortest=LENGTH)

    @torch.inference_mode()
    def alone() -> float:
        search(
            model.step, lambda: model.start(source, None), torch.full((1, 1), BOS), how, eos=EOS, specials=(),
            limit=LENGTH, texts=source.tolist(), quick=partial(model.writer, source, None),
        )  # fmt: skip
        return float(LENGTH)

    last = f"decoder.{len(model.decoder) - 1}.cross"
    engines = {"nobody watches": alone, "last cross-attention": partial(watched, model, last, alone)}
    threads = {name: best_threads(run) for name, run in engines.items()}
    able = {name: partial(threaded, threads[name], run) for name, run in engines.items()}
    found = race(f"small answer, {arithmetic}", "tokens/s", able, rounds=9, warm=3)
    found.chosen = {name: threads_told(count) for name, count in threads.items()}
    return found


def threaded(threads: int, work: Callable[[], float]) -> float:
    torch.set_num_threads(threads)
    return work()


def watched(model: torch.nn.Module, name: str, work: Callable[[], float]) -> float:
    with watch(model, name):
        return work()


if __name__ == "__main__":
    main(sys.argv[1:])
