"""Kernels of a GPU's step against PyTorch's own operators. Without a GPU they are interpreted, slowly: make storm.
REGARD_DEVICE=cuda runs them as they are."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.block import ACTIVATIONS
from regard.core.head import Head
from regard.core.linear import Linear, pack
from regard.core.state import Books, State
from regard.decode import Hypothesis, beam, greedy
from regard.decode.captured import Captured, captured
from regard.decode.prompt import Act, Replay
from regard.models import gpt, transformer

DEVICE = torch.device(os.environ.get("REGARD_DEVICE", "cpu"))
pytest.importorskip("triton", reason="Triton is not installed; make storm installs it")

from regard.fast import kernels, narrow, words  # noqa: E402

BF16 = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # whose products the interpreter gets wrong
KINDS = {torch.float32: 1e-5, BF16: 2e-2}
HIDDEN = float("-inf")
pytestmark = [pytest.mark.storm] if DEVICE.type == "cpu" else []
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def close(found: Tensor, wanted: Tensor) -> None:
    within = KINDS[found.dtype]
    torch.testing.assert_close(found, wanted, rtol=within, atol=2 * within)


def some(*shape: int, kind: torch.dtype) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(kind)


@each_kind
@pytest.mark.parametrize("activation", [*ACTIVATIONS, None])
@pytest.mark.parametrize(("rows", "wide", "columns"), [(1, 7, 5), (3, 40, 96), (4, 33, 2500), (2, 2100, 64)])
def test_a_product_with_all_that_is_around_it(
    rows: int, wide: int, columns: int, activation: str | None, kind: torch.dtype
) -> None:
    x, residual, bias = some(rows, columns, kind=kind), some(rows, wide, kind=kind), some(wide, kind=kind)
    weight = some(wide, columns, kind=kind) * columns**-0.5
    norm = nn.LayerNorm(columns, device=DEVICE, dtype=kind)
    norm.weight.normal_()
    act = ACTIVATIONS[activation] if activation else lambda t: t
    close(kernels.product(x, weight, None, activation=activation), act(F.linear(x, weight)))
    found = kernels.product(x, weight, bias, norm=norm, activation=activation, residual=residual)
    close(found, act(F.linear(norm(x), weight, bias)) + residual)
    norm.register_parameter("bias", None)
    close(kernels.product(x, weight, bias, norm=norm), F.linear(norm(x), weight, bias))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_no_activation_makes_a_number_of_none(activation: str) -> None:
    x = torch.eye(4, device=DEVICE)[:3]
    weight = torch.full((5, 4), float("nan"), device=DEVICE)
    assert kernels.product(x, weight, None, activation=activation).isnan().all()


@each_kind
@pytest.mark.parametrize("columns", [5, 96, 1090])
@pytest.mark.parametrize("rows", [1, 3, kernels.MOST_VECTORS + 1])
def test_a_matrix_in_bytes_is_nearly_the_matrix(
    rows: int, columns: int, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And exactly that of its whole numbers, however many vectors come."""
    monkeypatch.setattr(kernels, "LARGE", 0)
    weight, bias, x = some(40, columns, kind=kind), some(40, kind=kind), some(1, rows, columns, kind=kind)
    multiply = kernels.in_bytes(weight, bias)
    assert isinstance(multiply, kernels.Bytes)
    assert multiply.weight.dtype == torch.int8
    again = multiply.weight * multiply.scale[:, None]
    assert ((again - weight.float()).abs() <= multiply.scale[:, None] * 0.5001).all()
    close(multiply(x) / 10, F.linear(x.float(), again, bias.float()).to(kind) / 10)
    assert kernels.in_bytes(torch.zeros_like(weight), None)(x).eq(0).all()  # type: ignore[misc]


@each_kind
@pytest.mark.parametrize("columns", [5, 96])
def test_a_norm_with_what_is_added_before_it(columns: int, kind: torch.dtype) -> None:
    x, residual = some(2, 3, columns, kind=kind), some(2, 3, columns, kind=kind)
    norm = nn.LayerNorm(columns, device=DEVICE, dtype=kind)
    norm.weight.normal_()
    close(kernels.normed(x, norm), norm(x))
    close(kernels.normed(x, norm, residual=residual), norm(x + residual))
    norm.register_parameter("bias", None)
    close(kernels.normed(x[:, :1], norm), norm(x[:, :1]))


@each_kind
@pytest.mark.parametrize("queries", [1, 2, 4, 5])
@pytest.mark.parametrize("steps", [0, 1, 140])
def test_looking_at_a_buffer_and_writing_to_it(queries: int, steps: int, kind: torch.dtype) -> None:
    rows, heads, width, capacity = 3, 2, 20, 160 * queries
    k, v = some(rows, heads, capacity, width, kind=kind), some(rows, heads, capacity, width, kind=kind)
    asked = some(rows * queries, 3, heads, width, kind=kind).unflatten(0, (rows, queries)).transpose(1, 3)
    q, new_k, new_v = asked.unbind(2)
    places = torch.arange(queries, device=DEVICE) + queries * steps
    seen = torch.where(torch.rand(rows, 1, queries, capacity, device=DEVICE) < 0.5, 0.0, HIDDEN).to(kind)
    seen[..., queries * steps :] = HIDDEN
    alone = torch.full((queries, queries), HIDDEN, device=DEVICE, dtype=kind).fill_diagonal_(0.0)
    seen.index_copy_(-1, places, alone.expand(rows, 1, queries, queries))
    kept = k.index_copy(2, places, new_k), v.index_copy(2, places, new_v)
    wanted = F.scaled_dot_product_attention(q, *kept, seen, scale=0.3)
    at_once = k.clone(), v.clone()
    close(kernels.attend_and_write(q, new_k, new_v, *at_once, seen, places, 0.3), wanted)
    kernels.write(k, v, new_k, new_v, places)
    for found, right, also in zip((k, v), kept, at_once, strict=True):
        assert torch.equal(found, right)
        assert torch.equal(also, right)
    close(kernels.attend(q, k, v, seen, places, 0.3), wanted)
    heard = seen[:, :, :1].clone()
    heard[1] = HIDDEN  # nothing to see: zero, as in the plain kernel
    wanted = F.scaled_dot_product_attention(q, k, v, heard.expand_as(seen), scale=0.3).nan_to_num()
    close(kernels.attend(q, k, v, heard, None, 0.3), wanted)


@each_kind
@pytest.mark.parametrize(("vocab", "k"), [(5, 5), (1024, 3), (2500, 6)])
def test_the_likeliest_words(vocab: int, k: int, kind: torch.dtype) -> None:
    """Of those that the filters have left; of two that are alike the first. There may be fewer than are asked for."""
    logits = some(4, vocab, kind=kind).round(decimals=1)
    bent = logits.clone()
    bent[:, vocab // 2] = HIDDEN
    bent[2] = HIDDEN
    bent[3, 1:] = HIDDEN
    chances, found = words.likeliest(logits, bent, k)
    wanted = (bent.float() - logits.float().logsumexp(-1, keepdim=True)).sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(chances, wanted.values[:, :k], rtol=1e-4, atol=1e-4)
    there = chances > HIDDEN
    assert torch.equal(found[there], wanted.indices[:, :k][there])
    assert found.min() >= 0
    assert found.max() < vocab


@each_kind
@pytest.mark.parametrize("vocab", [5, 1024, 2500])
def test_saying_the_likeliest_word(vocab: int, kind: torch.dtype) -> None:
    """As a greedy search chooses, with its books: one row goes on, one ends, one is at its limit, one was done."""
    rows, every, slot, said = 4, 3, 1, 6
    wide = some(rows, vocab + 3, kind=kind)
    logits = wide[:, :vocab]  # rows begin where those of a wider table do
    logits[2, vocab // 2 :] = logits[2].max() + 1  # several are likeliest
    logits[3, 1:] = HIDDEN
    totals = torch.randn(rows, 1, device=DEVICE, dtype=torch.float64)
    before, best = totals.clone(), logits.argmax(-1)
    eos = int(best[1])
    told = torch.zeros(every, rows, 2, 1, device=DEVICE, dtype=torch.float64)
    tokens = torch.zeros(rows, dtype=torch.long, device=DEVICE)
    going = torch.tensor([True, True, True, False], device=DEVICE)
    limit = torch.tensor([9, 9, said + 1, 9], device=DEVICE)
    clock = torch.tensor([0, said, slot, 0], device=DEVICE)
    words.say(logits, Books(tokens, totals, told, going, limit, clock), eos)
    assert torch.equal(tokens[:2], best[:2])
    assert torch.equal(logits[2, tokens[2]], logits[2].max())
    wanted = before + logits.float().log_softmax(-1).gather(1, tokens[:, None])
    torch.testing.assert_close(totals, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(told[slot, :, 0], totals)
    assert torch.equal(told[slot, :, 1, 0], tokens.double())
    assert not told[[0, 2]].any()
    assert going.tolist() == [int(best[0]) != eos, False, False, False]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="fake tensors and real ones agree where the kernels run")
def test_the_operators_can_be_compiled() -> None:
    q, k, v = (some(2, 2, 3, 16, kind=torch.float32) for _ in range(3))
    places = torch.arange(3, device=DEVICE)
    torch.library.opcheck(kernels.attend, (q, k, v, q.new_zeros(2, 1, 3, 3), places, 0.25))
    torch.library.opcheck(kernels.write, (k, v, q, q, places))


# ---- whole searches

VOCAB, EOS, BOS = 13, 2, 1
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt2": (gpt.GPT, gpt.Config, {"context": 40}),
    "gpt1, no biases": (gpt.GPT, gpt.Config, {"context": 40, "norm": "post", "bias": False}),
    "transformer": (transformer.Transformer, transformer.Config, {"hidden": 40}),
    "transformer, pre": (transformer.Transformer, transformer.Config, {"hidden": 40, "norm": "pre", "bias": True}),
    "transformer, cosine": (transformer.Transformer, transformer.Config, {"hidden": 40, "score": "cosine"}),
}


def make(family: str) -> Autoregressive:
    build, config, more = FAMILIES[family]
    model: Autoregressive = build(config(vocab=VOCAB, dim=20, heads=2, layers=2, **more))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return pack(model.to(DEVICE).eval())


def repeated(act: Act, pool: Any) -> Replay:
    """What stands for a captured graph where there is no GPU."""
    return act


RECORD = captured if DEVICE.type == "cuda" else repeated


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("rows", "keep"), [(1, 1), (1, 3), (2, 2), (3, 1), (6, 1), (3, 4)])
def test_searches_find_what_the_plain_ones_find(
    family: str, rows: int, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dice = make(family), random.Random(f"{family} {rows} {keep}")
    calls = _counted(monkeypatch)
    prompt = torch.full((rows, 1), BOS, device=DEVICE)
    source = torch.randint(3, VOCAB, (rows, 7), device=DEVICE)
    real = (torch.arange(7) < torch.tensor([7, *(dice.randint(1, 7) for _ in range(rows - 1))])[:, None]).to(DEVICE)

    def start() -> State:
        return model.start(source, real) if model.sourced else model.start(rows=rows)

    def asked(step: Any) -> list[list[Hypothesis]]:
        if keep == 1:
            return [[one] for one in greedy(step, start(), prompt, eos=EOS, limit=12)]
        return beam(step, start(), prompt, eos=EOS, limit=12, keep=keep)

    for answers, others in zip(asked(Captured(model, RECORD, kernels=narrow)), asked(model.step), strict=True):
        for one, other in zip(answers, others, strict=True):
            assert (one.tokens, one.finished, one.rows) == (other.tokens, other.finished, other.rows)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
    assert all(block._compiled_call_impl is None for block in model.modules())
    assert ("say" in calls) == (keep == 1)
    assert ("likeliest" in calls) == (keep > 1)
    assert ("product" in calls) == (rows * keep <= kernels.MOST_VECTORS)
    assert ("attend_and_write" in calls) == ("cosine" not in family)


@pytest.mark.parametrize("rows", [1, 6])
def test_a_search_with_weights_in_bytes_is_that_of_the_model_with_such_weights(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "LARGE", 0)
    model, twin = make("transformer, pre"), make("transformer, pre")
    twin.load_state_dict(model.state_dict())
    for part in twin.modules():
        if isinstance(part, (Linear, Head)):  # the head is the embedding as well, but what is looked up stays as it is
            held = kernels.Bytes(part.weight, None)
            part.weight = nn.Parameter(held.weight * held.scale[:, None])
    pack(model, kernels.in_bytes)
    prompt, source = torch.full((rows, 1), BOS, device=DEVICE), torch.randint(3, VOCAB, (rows, 7), device=DEVICE)
    found = greedy(Captured(model, RECORD, kernels=narrow), model.start(source), prompt, eos=EOS, limit=12)
    wanted = greedy(pack(twin).step, twin.start(source), prompt, eos=EOS, limit=12)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    assert [one.logprob for one in found] == pytest.approx([one.logprob for one in wanted], abs=1e-3)


def _counted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    calls: set[str] = set()
    for name in ("product", "attend_and_write", "attend", "say", "likeliest"):
        real = getattr(words if name in ("say", "likeliest") else kernels, name)
        for module in (kernels, narrow):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *a, n=name, f=real, **k: calls.add(n) or f(*a, **k))
    return calls


class Doubled(Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("meddling", ["hook", "subclass", "activation", "unpacked"])
def test_a_block_that_somebody_has_changed_is_left_alone(meddling: str) -> None:
    model = make("gpt2")
    block: Any = model.blocks[0]  # type: ignore[index, union-attr]
    assert narrow.fits(block)
    with ExitStack() as undo:
        if meddling == "hook":
            undo.callback(block.feed_forward.register_forward_hook(lambda *_: None).remove)
        elif meddling == "subclass":
            block.feed_forward.wide.__class__ = Doubled
        elif meddling == "activation":
            block.feed_forward.activation = torch.sin
        else:
            block.attention.packed = None
        assert not narrow.fits(block)


def test_there_are_none_for_other_numbers_and_wide_beams() -> None:
    buffer = torch.zeros(1, 1, 4, 8, device=DEVICE)
    assert kernels.suit(buffer, 4)
    assert not kernels.suit(buffer.double(), 4)
    assert not kernels.suit(buffer, kernels.MOST_QUERIES + 1)
