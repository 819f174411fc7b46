"""Going on with a text, token by token: our GPT-2 of 124 million parameters against Hugging Face `generate`.

python -m bench.generate             # CPU, or the GPU where there is one
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import GenerationConfig

from bench.harness import Comparison, best_threads, common_told, in_common, race, report, threads_told
from bench.peers import hugging_face_gpt2, our_gpt2, ready
from regard.decode import greedy
from regard.decode.captured import Captured
from regard.decode.filters import at_least
from regard.models.gpt import GPT

PROMPT, LENGTH = 32, 64  # tokens given and written
EOS = 50_256
ROWS = {"cpu": (1,), "cuda": (1, 64)}
ROUNDS = 5


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = [compare(rows, device) for rows in ROWS[device]]
    how = {
        "cpu": "fp32, by PyTorch on both sides: ours step by step, without the accelerator (bench/fast.py has it). The "
        "answers were checked to be the same tokens. Each engine has its own best number of threads (in brackets).",
        "cuda": "bf16. Our steps are captured, as regard.load prepares them; capturing is not timed. Of the answers "
        f"{common_told(found)}.",
    }
    note = (
        f"GPT-2 of 124 million parameters, greedy search, {LENGTH} tokens after {PROMPT}, reading the prompt included; "
        f"equal random weights in {how[device]}"
    )
    report("generate", "GPT-2's greedy decoding against Hugging Face generate", note, found)


def compare(rows: int, device: str) -> Comparison:
    mine = talkative(our_gpt2()).eval()
    theirs = hugging_face_gpt2(mine).eval()
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    mine, theirs = ready(mine.to(device, kind)), theirs.to(device, kind)
    prompt = torch.randint(EOS, (rows, PROMPT), generator=torch.Generator().manual_seed(1)).to(device)
    how = GenerationConfig(
        do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH, pad_token_id=EOS, eos_token_id=EOS
    )  # fmt: skip

    def regard() -> list[list[int]]:
        answers = greedy(mine.step, mine.start(), prompt, eos=EOS, limit=LENGTH, filters=(at_least(LENGTH, EOS),))
        return [list(answer.tokens) for answer in answers]

    def hugging_face() -> list[list[int]]:
        with torch.inference_mode():
            found = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=how)
        return found[:, PROMPT:].tolist()

    if device == "cuda":
        regard()
        assert isinstance(mine.step, Captured)
        assert mine.step.captures, "our steps could not be captured"
    same = in_common(regard(), hugging_face())
    assert device == "cuda" or same == 1.0, "the two engines disagree"
    engines = {"regard": regard, "Hugging Face generate": hugging_face}
    threads = {name: best_threads(run) if device == "cpu" else 1 for name, run in engines.items()}
    timed = {name: _timed(run, threads[name], rows) for name, run in engines.items()}
    found = race(f"batch {rows}", "tokens/s", timed, rounds=ROUNDS, warm=1)
    if device == "cpu":
        found.chosen = {name: threads_told(count) for name, count in threads.items()}
    found.same = same
    return found


def talkative(model: GPT) -> GPT:
    """At birth a tied model says its last token again and again, and then equal answers prove little. Larger matrices
    make the next token hang on all those before it.
    """
    with torch.no_grad():
        for matrix in model.blocks.parameters():
            if matrix.ndim == 2:
                matrix.mul_(8.0)
    return model


def _timed(run: Callable[[], object], threads: int, rows: int) -> Callable[[], float]:
    def timed() -> float:
        torch.set_num_threads(threads)
        run()
        return float(rows * LENGTH)

    return timed


if __name__ == "__main__":
    main()
