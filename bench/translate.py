"""Translation: ours against Hugging Face `generate`, the same weights, the same 30 tokens out.

python -m bench.translate            # CPU, or the GPU where there is one
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from transformers import GenerationConfig

from bench.harness import Comparison, best_threads, race, report
from bench.peers import BOS, EOS, PAD, marian, ours
from regard.core.linear import pack
from regard.decode import beam, greedy
from regard.decode.filters import at_least

LENGTH = 30
CELLS = [("small", 8_000, 1, 1), ("small", 8_000, 1, 4), ("small", 8_000, 32, 1), ("small", 8_000, 32, 4),
         ("base", 32_000, 1, 1), ("base", 32_000, 1, 4), ("base", 32_000, 32, 1)]  # fmt: skip
GPU_CELLS = [("base", 32_000, 1, 1), ("base", 32_000, 1, 4), ("base", 32_000, 64, 1), ("base", 32_000, 64, 4)]


def main() -> None:
    cuda = torch.cuda.is_available()
    found = [compare(*cell, "cuda" if cuda else "cpu") for cell in (GPU_CELLS if cuda else CELLS)]
    note = (
        f"{LENGTH} tokens out, sources of {LENGTH} tokens, fp32 weights ({'bf16' if cuda else 'fp32'} arithmetic), "
        f"equal weights{'' if cuda else '; greedy answers were checked to be the same tokens'}. "
        "Each engine has its own best number of threads."
    )
    report("translate", "Translation against Hugging Face generate", note, found)


def compare(size: str, vocab: int, batch: int, width: int, device: str) -> Comparison:
    mine = ours(size, vocab).eval()
    theirs = marian(mine).eval()
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    mine, theirs = pack(mine.to(device, kind)), theirs.to(device, kind)
    torch.manual_seed(1)
    source = torch.randint(4, vocab, (batch, LENGTH), device=device)
    real = torch.ones_like(source, dtype=torch.bool)
    prompt = torch.full((batch, 1), BOS, device=device)
    how = GenerationConfig(
        num_beams=width, do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH, early_stopping=width > 1,
        pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=BOS, use_cache=True,
    )  # fmt: skip
    search = greedy if width == 1 else functools.partial(beam, keep=width)

    def regard() -> list[list[int]]:
        with torch.inference_mode():
            state = mine.start(source, None)  # nothing is padded, as the peer finds out by itself
        answers = search(mine.step, state, prompt, eos=EOS, limit=LENGTH, filters=(at_least(LENGTH, EOS),))
        return [list(a.tokens if width == 1 else a[0].tokens) for a in answers]

    def hugging_face() -> list[list[int]]:
        with torch.inference_mode():
            return theirs.generate(source, attention_mask=real.long(), generation_config=how)[:, 1:].tolist()

    if width == 1 and kind == torch.float32:
        assert regard() == hugging_face(), "the two engines disagree"
    engines = {"regard": regard, "Hugging Face generate": hugging_face}
    threads = {name: best_threads(run) if device == "cpu" else 1 for name, run in engines.items()}
    return race(
        f"{size}, batch {batch}, beam {width}",
        "tokens/s",
        {name: _timed(run, threads[name], batch, device) for name, run in engines.items()},
        rounds=5,
        warm=1,
    )


def _timed(run: Callable[[], object], threads: int, batch: int, device: str) -> Callable[[], float]:
    def timed() -> float:
        if device == "cpu":
            torch.set_num_threads(threads)
        run()
        return float(batch * LENGTH)

    return timed


if __name__ == "__main__":
    main()
