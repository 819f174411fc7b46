"""What races against ours says the same words, on models so small that it takes a moment."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from bench import translate
from bench.peers import ours, plain


def test_all_say_the_same_greedily() -> None:
    made = translate.engines("tiny", 97, batch=2, width=1, device="cpu")
    assert list(made) == ["regard", "Hugging Face generate", "torch.nn.Transformer"]
    first, *others = (run() for run in made.values())
    assert [len(answer) for answer in first] == [translate.LENGTH] * 2
    assert others == [first, first]


def test_without_beams_no_race_of_beams() -> None:
    assert list(translate.engines("tiny", 97, batch=1, width=2, device="cpu")) == ["regard", "Hugging Face generate"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_note_tells_the_precision_of_the_weights(device: str) -> None:
    kind = {"cpu": "fp32", "cuda": "bf16"}[device]
    assert f"weights and arithmetic in {kind}" in translate.note(device)


@torch.inference_mode()
def test_torch_nn_with_our_weights_computes_what_we_compute() -> None:
    model = ours("tiny", 97).eval()
    for parameter in model.parameters():  # biases and gains too, which begin at zero and one and hide mistakes there
        nn.init.normal_(parameter, std=0.4)
    source, target = torch.randint(4, 97, (2, 7)), torch.randint(4, 97, (2, 5))
    twin, causal = plain(model).eval(), nn.Transformer.generate_square_subsequent_mask(5)
    theirs = twin.body(twin.embed(source), twin.embed(target), tgt_mask=causal)
    torch.testing.assert_close(model(source, None, target)[0], theirs, rtol=1e-4, atol=1e-4)
