"""What races against ours says the same words, on models so small that it takes a moment."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from bench import translate
from bench.peers import ours, plain


@pytest.mark.parametrize("cell", translate.TINY, ids=str)
def test_all_say_the_same(cell: translate.Cell) -> None:
    able = {name: make for name, make in translate.ENGINES.items() if translate.can(name, cell)}
    first, *others = (make(cell.size, cell.vocab)(cell) for make in able.values())
    assert [len(answer) for answer in first] == [translate.LENGTH] * 2
    assert others == [first] * (2 if cell.width == 1 else 1)


@torch.inference_mode()
def test_torch_nn_with_our_weights_computes_what_we_compute() -> None:
    model = ours("tiny", 97).eval()
    for parameter in model.parameters():  # biases and gains too, which begin at zero and one and hide mistakes there
        nn.init.normal_(parameter, std=0.4)
    source, target = torch.randint(4, 97, (2, 7)), torch.randint(4, 97, (2, 5))
    twin, causal = plain(model).eval(), nn.Transformer.generate_square_subsequent_mask(5)
    theirs = twin.body(twin.embed(source), twin.embed(target), tgt_mask=causal)
    torch.testing.assert_close(model(source, None, target)[0], theirs, rtol=1e-4, atol=1e-4)
