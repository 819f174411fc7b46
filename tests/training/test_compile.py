"""Compiling changes no loss and no gradient, and a few graphs serve all blocks and every batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch.fx import GraphModule

from regard.config import Config
from regard.errors import ConfigError
from regard.models import build, schema
from regard.training.compiled import GRAPHS, compile_in_place, graphs

SMALL: dict[str, Config] = {
    "transformer": schema("transformer")(vocab=30, dim=16, heads=2, layers=3, hidden=32, dropout=0.0),
    "seq2seq": schema("seq2seq")(vocab=30, dim=16, embedding=12),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler asks for it, not we
def test_a_few_graphs_serve_all_blocks_and_every_batch() -> None:
    """One for a block of the encoder, of the decoder and for the head; others once shapes have changed, and no more."""
    torch.manual_seed(0)
    plain = build("transformer", SMALL["transformer"]).train()  # type: ignore[arg-type]
    compiled = copy.deepcopy(plain)
    torch._dynamo.reset()
    counters.clear()
    compile_in_place(compiled, backend="aot_eager")
    assert torch._dynamo.config.recompile_limit >= GRAPHS
    made = []
    for rows, read, written in ((4, 7, 5), (4, 7, 5), (3, 9, 6), (6, 5, 8), (5, 12, 4)):
        source, target = torch.randint(4, 30, (rows, read)), torch.randint(4, 30, (rows, written))
        real = torch.arange(read) < torch.randint(2, read + 1, (rows, 1))
        grads = []
        for model in (plain, compiled):
            model.zero_grad()
            hidden, _ = model(source, real, target)
            loss = model.head(hidden, target, smoothing=0.1)  # type: ignore[operator]
            loss.total.backward()
            grads.append([loss.total, *(p.grad for p in model.parameters() if p.grad is not None)])
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        made.append(graphs())
    assert made == [3, 3, 6, 6, 6]
    assert set(compiled.state_dict()) == set(plain.state_dict())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_block_makes_no_gradients_of_keys_and_values() -> None:
    """Nobody learns through them: all that comes back to a block is the gradient of what it says."""
    came: list[list[str]] = []

    def backward(graph: GraphModule, _: Any) -> Any:
        came.append([node.name for node in graph.graph.nodes if node.op == "placeholder" and "tangent" in node.name])
        return make_boxed_func(graph.forward)

    def forward(graph: GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    config = schema("gpt")(vocab=30, dim=16, heads=2, layers=2, context=8)
    model = build("gpt", config).train()  # type: ignore[arg-type]
    torch._dynamo.reset()
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend=aot_autograd(fw_compiler=forward, bw_compiler=backward))  # type: ignore[union-attr]
    hidden, _ = model(None, None, torch.randint(30, (2, 6)))
    hidden.sum().backward()
    assert {len(names) for names in came} == {1}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_other_systems_say_and_learn_the_same_compiled(name: str) -> None:
    torch.manual_seed(0)
    tokens, real = torch.randint(4, 30, (3, 7)), torch.arange(7) < torch.tensor([[7], [5], [2]])
    given = (None, None, tokens) if name == "gpt" else (tokens, real, torch.zeros_like(tokens))
    sizes = {"vocab": 30, "dim": 16, "heads": 2, "layers": 2, "context": 8}
    plain = build(name, schema(name)(**sizes, dropout=0.0, attention_dropout=0.0)).double().train()  # type: ignore[arg-type]
    compiled = copy.deepcopy(plain)
    torch._dynamo.reset()
    compile_in_place(compiled, backend="aot_eager")
    # not the sum of squares: behind a norm it hardly depends on anything, and its gradients are rounding
    found, direction = [], real[..., None] * torch.randn(3, 7, 16, dtype=torch.float64)
    for model in (plain, compiled):
        said = model(*given)
        hidden = (said[0] if name == "gpt" else said) * direction
        hidden.sum().backward()
        found.append([hidden, *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_what_has_no_blocks_cannot_be_compiled() -> None:
    with pytest.raises(ConfigError, match=r"^train\.compile: this system has no blocks that could be compiled; leave"):
        compile_in_place(build("seq2seq", SMALL["seq2seq"]))  # type: ignore[arg-type]
