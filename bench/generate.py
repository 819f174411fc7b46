"""Going on with a text on a CPU, token by token: our GPT-2 of 124 million parameters against Hugging Face `generate`.
Each engine has processes of its own (bench/apart.py); bench/decode.py is for GPUs.

python -m bench.generate
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from bench import apart
from bench.harness import refuse_others, report
from bench.peers import hugging_face_gpt2, our_gpt2, ready
from regard.decode import greedy
from regard.decode.filters import at_least
from regard.models.gpt import GPT

PROMPT, LENGTH = 32, 32  # tokens given and written
EOS = 50_256


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [])
    with apart.engines(regard) as ours, apart.engines(hugging_face) as theirs:
        able: dict[str, dict[str, apart.Run]] = {"regard": {**ours}, "Hugging Face generate": {**theirs}}
        first, other = (apart.any_of(ways)() for ways in able.values())
        assert first == other, "the two engines disagree"
        found = apart.compare("batch 1", LENGTH, able)
    note = (
        f"GPT-2 of 124 million parameters, greedy search, {LENGTH} tokens after {PROMPT}, reading the prompt included; "
        "equal random weights in fp32, by PyTorch on both sides: ours step by step, without the accelerator "
        "(bench/fast.py has it). The answers were checked to be the same tokens. Each engine in processes of its own, "
        "at its best number of threads (in brackets)."
    )
    report("generate", "GPT-2's greedy decoding against Hugging Face generate", note, [found])


def regard(_: int) -> apart.Run:
    model, given = ready(talkative(our_gpt2()).eval()), prompt()

    def run() -> list[int]:
        filters = (at_least(LENGTH, EOS),)
        return list(greedy(model.step, model.start(), given, eos=EOS, limit=LENGTH, filters=filters)[0].tokens)

    return run


def hugging_face(_: int) -> apart.Run:
    from transformers import GenerationConfig

    model, given = hugging_face_gpt2(talkative(our_gpt2())).eval(), prompt()
    how = GenerationConfig(
        do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH, pad_token_id=EOS, eos_token_id=EOS
    )  # fmt: skip

    @torch.inference_mode()
    def run() -> list[int]:
        found = model.generate(given, attention_mask=torch.ones_like(given), generation_config=how)
        return found[0, PROMPT:].tolist()

    return run


def prompt() -> Tensor:
    return torch.randint(EOS, (1, PROMPT), generator=torch.Generator().manual_seed(1))


def talkative(model: GPT) -> GPT:
    """At birth a tied model says its last token again and again, and then equal answers prove little. Larger matrices
    make the next token hang on all those before it.
    """
    with torch.no_grad():
        for matrix in model.blocks.parameters():
            if matrix.ndim == 2:
                matrix.mul_(8.0)
    return model


if __name__ == "__main__":
    main(sys.argv[1:])
