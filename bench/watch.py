"""What watching costs: a forward pass of the base model, alone and while one attention is watched, all heads.

python -m bench.watch
"""

from __future__ import annotations

import torch

from bench.harness import len_cores, race, report
from bench.peers import ours
from regard.core.watch import watch


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(len_cores())
    rows, length = 16 if device == "cuda" else 1, 512
    model = ours("base", 32_000).to(device).eval()
    source = torch.randint(4, 32_000, (rows, length), device=device)
    real = torch.ones_like(source, dtype=torch.bool)

    @torch.inference_mode()
    def alone() -> float:
        model(source, real, source)
        return float(rows * length)

    def watched(name: str) -> float:
        with watch(model, name):
            return alone()

    engines = {
        "nobody watches": alone,
        "last cross-attention": lambda: watched("decoder.5.cross"),
        "one encoder attention": lambda: watched("encoder.2.attention"),
        "all eighteen": lambda: watched("*"),
    }
    found = race(f"base forward, {rows} × {length} tokens", "tokens/s", engines, rounds=9, warm=3)
    report(
        "watch",
        "What watching costs",
        "All heads and queries of what is watched; the ratio is the price (1.00× is free).",
        [found],
    )


if __name__ == "__main__":
    main()
