"""Translation: ours against Hugging Face `generate` and a loop over torch.nn.Transformer, the same weights, the same
30 tokens out.

python -m bench.translate            # CPU, or the GPU where there is one
python -m bench.translate --tiny     # anywhere: a small model, nothing is written, to see that it works
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

import torch
from transformers import GenerationConfig

from bench.harness import Comparison, best_threads, common_told, in_common, race, refuse_others, report, threads_told
from bench.peers import BOS, EOS, PAD, marian, ours, plain, ready
from regard.decode import beam, greedy
from regard.decode.captured import Captured
from regard.decode.filters import at_least

LENGTH = 30
FEW = 8  # sentences for a loop without a cache: 32 at once take it five times as long as us, and minutes
CELLS = [("small", 8_000, 1, 1), ("small", 8_000, 1, 4), ("small", 8_000, 32, 1), ("small", 8_000, 32, 4),
         ("base", 32_000, 1, 1), ("base", 32_000, 1, 4), ("base", 32_000, 32, 1)]  # fmt: skip
GPU_CELLS = [("base", 32_000, 1, 1), ("base", 32_000, 1, 4), ("base", 32_000, 64, 1), ("base", 32_000, 64, 4)]
TINY_CELLS = [("tiny", 97, 2, 1), ("tiny", 97, 2, 4)]

Run = Callable[[], list[list[int]]]


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, ["--tiny"])
    if "--tiny" in asked:
        for cell in TINY_CELLS:
            print(compare(*cell, "cpu"))
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = [compare(*cell, device) for cell in (GPU_CELLS if device == "cuda" else CELLS)]
    agreed = f" Of ours and those of Hugging Face, {common_told(found)}." if device == "cuda" else ""
    title = "Translation against Hugging Face generate and torch.nn.Transformer"
    report("translate", title, note(device) + agreed, found)


def note(device: str) -> str:
    how = {
        "cpu": "weights and arithmetic in fp32, by PyTorch on all sides: ours step by step, without the accelerator "
        "(bench/fast.py has it). The answers were checked to be the same tokens. Each engine has its own best number "
        "of threads (in brackets).",
        "cuda": "weights and arithmetic in bf16. Our steps are captured, as regard.load prepares them; capturing is "
        "not timed.",
    }
    return (
        f"{LENGTH} tokens out, sources of {LENGTH} tokens, equal weights; {how[device]} torch.nn.Transformer has no "
        "cache: its decoder reads all words so far for each new one. It has no beams either, and is raced at beam 1 "
        "and with few sentences alone."
    )


def compare(size: str, vocab: int, batch: int, width: int, device: str) -> Comparison:
    made = engines(size, vocab, batch, width, device)
    first, *others = (run() for run in made.values())
    if device == "cpu":
        assert all(first == other for other in others), f"the engines disagree, beam {width}"
    threads = {name: best_threads(run) if device == "cpu" else 1 for name, run in made.items()}
    found = race(
        f"{size}, batch {batch}, beam {width}",
        "tokens/s",
        {name: _timed(run, threads[name], batch, device) for name, run in made.items()},
        rounds=15 if (size, batch) == ("small", 1) else 5,  # many where one takes no time
        warm=1,
    )
    if device == "cpu":
        found.chosen = {name: threads_told(count) for name, count in threads.items()}
    found.same = in_common(first, others[0])
    return found


def engines(size: str, vocab: int, batch: int, width: int, device: str) -> dict[str, Run]:
    """What each engine does, ours first. On a GPU, ours has been captured."""
    mine = ours(size, vocab).eval()
    theirs, loop = marian(mine).eval(), plain(mine).eval()
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    mine, theirs, loop = ready(mine.to(device, kind)), theirs.to(device, kind), loop.to(device, kind)
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

    def torch_nn() -> list[list[int]]:
        return loop.greedy(source, BOS, EOS, LENGTH).tolist()

    if device == "cuda":
        regard()
        assert isinstance(mine.step, Captured)
        assert mine.step.captures, "our steps could not be captured"
    found: dict[str, Run] = {"regard": regard, "Hugging Face generate": hugging_face}
    return found | ({"torch.nn.Transformer": torch_nn} if width == 1 and batch <= FEW else {})


def _timed(run: Run, threads: int, batch: int, device: str) -> Callable[[], float]:
    def timed() -> float:
        if device == "cpu":
            torch.set_num_threads(threads)
        run()
        return float(batch * LENGTH)

    return timed


if __name__ == "__main__":
    main(sys.argv[1:])
