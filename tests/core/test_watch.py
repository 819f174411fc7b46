from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import regard
from regard.core.attention import Attention
from regard.core.block import Block, FeedForward, PreNorm
from regard.core.mask import Mask
from regard.core.probe import _OPEN
from regard.core.state import KV
from regard.core.watch import attentions, watch
from regard.errors import ConfigError

from .masks import Shape, by_hand, masks, shapes


class Stack(nn.Module):
    """Blocks that look back at themselves and across at a memory."""

    def __init__(self, dropout: float = 0.0, blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(Attention(8, heads=2, dropout=dropout), FeedForward(8, 16), lambda: PreNorm(8), Attention(8, heads=2))
            for _ in range(blocks)
        )

    def forward(self, x: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        for block in self.blocks:
            x, _ = block(x, Mask(causal=True), memory=block.cross.project(memory), memory_mask=Mask(keys=real))  # type: ignore[operator, union-attr]
        return x


NAMES = ["blocks.0.attention", "blocks.0.cross", "blocks.1.attention", "blocks.1.cross"]
Inputs = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def inputs() -> Inputs:
    return torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.arange(7) < torch.tensor([[7], [4]])


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    assert not _OPEN  # nobody is still watching


def softmax(attention: Attention, x: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
    """(B, H, Q, K) by the formula."""
    d = x.shape[-1] // attention.heads
    q, k = (t.unflatten(-1, (-1, d)).transpose(1, 2) for t in (attention.score.query(x), attention.score.key(memory)))
    table = q @ k.transpose(-2, -1) / math.sqrt(d)
    return table.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@given(data=st.data())
def test_rows_shown_are_the_explicit_softmax(dtype: torch.dtype, tolerance: float, data: st.DataObject) -> None:
    shape = data.draw(shapes())
    mask = data.draw(masks(shape))
    attention = Attention(4 * shape.h, heads=shape.h).to(dtype)
    x, memory = (
        torch.randn(shape.b, shape.q, 4 * shape.h, dtype=dtype),
        torch.randn(shape.b, shape.k, 4 * shape.h, dtype=dtype),
    )
    heads = data.draw(
        st.none() | st.lists(st.integers(-shape.h, shape.h - 1), min_size=1, unique_by=lambda h: h % shape.h)
    )
    queries = data.draw(st.none() | st.lists(st.integers(-shape.q, shape.q - 1), max_size=3))
    wanted = softmax(attention, x, memory, by_hand(mask, shape))
    wanted = wanted if heads is None else wanted[:, heads]
    wanted = wanted if queries is None else wanted[:, :, queries]
    with regard.watch(attention, heads=heads, queries=queries) as seen:
        attention(x, memory, mask)
    (shown,) = seen[""]
    torch.testing.assert_close(shown, wanted, rtol=0, atol=tolerance)


def test_what_is_shown_times_the_values_is_what_was_read(inputs: Inputs) -> None:
    attention = Attention(8, heads=2).double()
    x, memory, real = inputs[0].double(), inputs[1].double(), inputs[2]
    kv = attention.project(memory)
    with regard.watch(attention) as seen:
        looked = attention.look(x, kv, Mask(keys=real))
    read = attention.output((seen[""][0] @ kv.values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(read, looked, rtol=0, atol=1e-12)


def test_every_call_of_every_attention_is_shown_in_turn(inputs: Inputs) -> None:
    model = Stack()
    with regard.watch(model) as seen:
        model(*inputs)
        model(inputs[0][:, :3], *inputs[1:])
    assert list(seen) == NAMES
    for name in NAMES:
        keys = (7, 7) if name.endswith("cross") else (5, 3)
        assert [w.shape for w in seen[name]] == [(2, 2, 5, keys[0]), (2, 2, 3, keys[1])]
    model(*inputs)
    assert all(len(calls) == 2 for calls in seen.values())  # nothing more once the block is left


def test_names_take_wild_cards_and_lists(inputs: Inputs) -> None:
    model = Stack()
    with regard.watch(model, "blocks.*.cross") as cross, regard.watch(model, NAMES[:2]) as first:
        model(*inputs)
    assert list(cross) == ["blocks.0.cross", "blocks.1.cross"]
    assert list(first) == NAMES[:2]
    assert all(len(calls) == 1 for calls in (*cross.values(), *first.values()))


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with (
        pytest.raises(ConfigError, match=r"no attention is named 'blocks.0.crss'; did you mean 'blocks.0.cross'\?"),
        regard.watch(Stack(), "blocks.0.crss"),
    ):
        pass
    with pytest.raises(ConfigError, match="no attention is named 'encoder'; known: blocks"):
        attentions(Stack(), ["blocks.*", "encoder"])


@pytest.mark.parametrize("head", [2, -3])
def test_a_head_that_is_not_there(head: int) -> None:
    sentence = f"blocks.0.cross has heads 0 to 1, but head {head} was asked for"
    with pytest.raises(ConfigError, match=sentence), regard.watch(Stack(), "blocks.0.cross", heads=[0, head]):
        pass
    with pytest.raises(ConfigError, match=sentence):
        regard.silence(Stack(), "blocks.0.cross", [head])


@pytest.mark.parametrize("came", ["0", ["0"], "01", 0.0, [None], {"heads": 0}])
def test_heads_and_queries_that_are_no_numbers(came: Any) -> None:
    for name in ("heads", "queries"):
        wanted = "where a number or a list of numbers was wanted"
        sentence = f"{name}={came!r} came, {wanted}; write for example {name}=0 or {name}=[0, 1]"
        with pytest.raises(ConfigError) as caught, regard.watch(Stack(), **{name: came}):
            pass
        assert str(caught.value) == sentence
    with pytest.raises(ConfigError, match=r"^heads=.* came, where a number or a list of numbers was wanted; write"):
        regard.silence(Stack(), "blocks.0.cross", came)


def test_queries_that_a_call_does_not_have_are_passed_over(inputs: Inputs) -> None:
    model = Stack()
    with regard.watch(model, "blocks.0.attention", queries=[4, 0, -5]) as seen:
        model(*inputs)
        model(inputs[0][:, :1], *inputs[1:])
    assert [w.shape[2] for w in seen["blocks.0.attention"]] == [3, 1]
    assert torch.equal(seen["blocks.0.attention"][0][:, :, 1], seen["blocks.0.attention"][0][:, :, 2])


def test_nested_watches_each_see_what_they_asked_for(inputs: Inputs) -> None:
    model = Stack()
    with regard.watch(model) as whole:
        model(*inputs)
        with regard.watch(model, "blocks.1.*", heads=[1], queries=[-1]) as part:
            model(*inputs)
    assert len(whole["blocks.1.cross"]) == 2
    torch.testing.assert_close(part["blocks.1.cross"][0], whole["blocks.1.cross"][1][:, 1:, -1:])


def test_an_error_ends_the_watch(inputs: Inputs) -> None:
    model = Stack()
    with pytest.raises(KeyError), regard.watch(model):
        raise KeyError
    assert not any(attention.probes for attention in attentions(model).values())


def test_watching_changes_no_bit_in_training_and_evaluation(inputs: Inputs) -> None:
    for model in (Stack(dropout=0.3).train(), Stack(dropout=0.3).eval()):
        torch.manual_seed(1)
        before = model(*inputs)
        torch.manual_seed(1)
        with regard.watch(model) as seen:
            during = model(*inputs)
        assert torch.equal(before, during)
        for calls in seen.values():
            torch.testing.assert_close(calls[0].sum(-1), torch.ones(2, 2, 5))  # shown before dropout
            assert not calls[0].requires_grad


def test_gradients_are_the_same_while_watched(inputs: Inputs) -> None:
    model = Stack()
    grads = []
    for watched in (False, True):
        model.zero_grad()
        if watched:
            with regard.watch(model):
                model(*inputs).square().sum().backward()
        else:
            model(*inputs).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(grads[0]) == len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("queries", [None, [-1], [7]], ids=["all", "last", "none"])
def test_hypotheses_that_share_a_memory_are_shown_row_by_row(queries: list[int] | None) -> None:
    """As in beam search: n rows for each sentence, one memory for all of them."""
    attention = Attention(8, heads=2).double()
    x, memory = torch.randn(6, 2, 8, dtype=torch.float64), torch.randn(3, 5, 8, dtype=torch.float64)
    real = torch.tensor([5, 3, 1])[:, None] > torch.arange(5)
    shape = Shape(6, 2, 2, 5)
    copied = Mask(keys=real.repeat_interleave(2, 0))
    wanted = softmax(attention, x, memory.repeat_interleave(2, 0), by_hand(copied, shape))
    with regard.watch(attention, heads=[1], queries=queries) as seen:
        attention.look(x, attention.project(memory), Mask(keys=real))
    rows = [0, 1] if queries is None else [1] if queries == [-1] else []
    torch.testing.assert_close(seen[""][0], wanted[:, 1:, rows])


def test_compiled_watching_compiles_once(inputs: Inputs) -> None:
    """One graph unwatched, one watched, and no third however often somebody watches."""
    model, counter = Stack(blocks=1), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with torch.no_grad():
        plain = compiled(*inputs)
        assert counter.frame_count == 1
        for calls in (1, 3, 2):
            with regard.watch(model, queries=[-1]) as seen:
                for _ in range(calls):
                    torch.testing.assert_close(compiled(*inputs), plain)
            assert [len(shown) for shown in seen.values()] == [calls] * 2
            assert torch.equal(compiled(*inputs), plain)
        with regard.watch(model, queries=[-1]) as eager:
            model(*inputs)
    assert counter.frame_count == 2
    for name in NAMES[:2]:
        torch.testing.assert_close(seen[name][-1], eager[name][0])


def test_compiled_training_can_be_watched(inputs: Inputs) -> None:
    model, counter = Stack(blocks=1), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    model(*inputs).square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for _ in range(3):
        model.zero_grad()
        with regard.watch(model) as seen:
            compiled(*inputs).square().sum().backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, wanted[name])
        assert [len(shown) for shown in seen.values()] == [1] * 2
        assert not any(shown[0].requires_grad for shown in seen.values())
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own making
def test_the_optimising_compiler_keeps_what_is_shown(inputs: Inputs) -> None:
    attention = Attention(8, heads=2)
    compiled = torch.compile(attention, fullgraph=True)
    with torch.no_grad():
        with regard.watch(attention, heads=[0]) as seen:
            compiled(inputs[0], mask=Mask(causal=True))
            compiled(inputs[0] + 1, mask=Mask(causal=True))
        with regard.watch(attention, heads=[0]) as eager:
            attention(inputs[0], mask=Mask(causal=True))
            attention(inputs[0] + 1, mask=Mask(causal=True))
    assert len(seen[""]) == 2
    for shown, wanted in zip(seen[""], eager[""], strict=True):
        torch.testing.assert_close(shown, wanted)


def test_a_silent_head_is_a_head_that_is_cut_out(inputs: Inputs) -> None:
    model = Stack()
    attention = attentions(model)["blocks.0.cross"]
    cut = Stack()
    cut.load_state_dict(model.state_dict())
    other = attentions(cut)["blocks.0.cross"].output
    assert isinstance(other, nn.Linear)
    with torch.no_grad():
        other.weight[:, 4:] = 0.0  # head 1 has channels 4 to 7
    before = model(*inputs)
    with regard.silence(model, "blocks.0.cross", [1]), regard.watch(model, "blocks.0.cross") as seen:
        silent = model(*inputs)
    torch.testing.assert_close(silent, cut(*inputs))
    assert (silent - before).abs().max() > 1e-3
    assert torch.equal(model(*inputs), before)
    assert attention.gain is None
    assert torch.equal(seen["blocks.0.cross"][0][:, 1], torch.zeros(2, 5, 7))


def test_the_explicit_path_is_silent_too() -> None:
    attention = Attention(8, heads=2)
    x = torch.randn(2, 3, 8)
    kv = attention.project(x)
    with regard.silence(attention, "", [-2]):
        torch.testing.assert_close(attention.read(attention.weigh(x, kv), kv), attention.look(x, kv))


def test_silences_add_up_and_end_in_any_order(inputs: Inputs) -> None:
    model = Stack()
    before = model(*inputs)
    with regard.silence(model, "blocks.1.attention", [1]):
        alone = model(*inputs)
    first = regard.silence(model, "blocks.1.attention", [0, 1])
    both = model(*inputs)
    second = regard.silence(model, "blocks.1.attention", [1])
    assert torch.equal(model(*inputs), both)
    first.undo()
    assert torch.equal(model(*inputs), alone)  # the second is still obeyed
    first.undo()  # once more does nothing
    assert torch.equal(model(*inputs), alone)
    second.undo()
    assert torch.equal(model(*inputs), before)
    assert not torch.equal(both, alone)


def test_an_attention_without_parameters_can_be_silenced() -> None:
    attention = Attention(8, score="dot", heads=2)
    x = torch.randn(1, 3, 8)
    with regard.silence(attention, "", [0]):
        assert torch.equal(attention(x)[..., :4], torch.zeros(1, 3, 4))
        assert attention(x)[..., 4:].abs().min() > 0


def test_silence_wants_one_attention() -> None:
    sentence = "'blocks.*' names 4 attentions, but one is silenced at a time; write 'blocks.0.attention'"
    with pytest.raises(ConfigError, match=sentence):
        regard.silence(Stack(), "blocks.*", [0])
    with pytest.raises(ConfigError, match=r"no attention is named 'blocks.0.cros'; did you mean 'blocks.0.cross'\?"):
        regard.silence(Stack(), "blocks.0.cros", [0])


def test_compiled_models_can_be_silenced(inputs: Inputs) -> None:
    model = Stack(blocks=1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        loud = compiled(*inputs)
        with regard.silence(model, "blocks.0.cross", [0]):
            torch.testing.assert_close(compiled(*inputs), model(*inputs))
            assert not torch.equal(compiled(*inputs), loud)
        assert torch.equal(compiled(*inputs), loud)


def test_a_compiled_model_keeps_the_names_of_its_attentions() -> None:
    model = nn.Sequential(Attention(8, heads=2))
    compiled = torch.compile(model, backend="eager")
    x = torch.randn(2, 3, 8)
    before = model(x)
    with regard.watch(compiled, "0", heads=1, queries=-1) as seen:
        compiled(x)
    assert seen.keys() == {"0"}
    assert seen["0"][0].shape == (2, 1, 1, 3)
    with regard.silence(compiled, "0", 1):
        assert not torch.equal(compiled(x), before)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [3, 1])
def test_what_is_shown_of_hidden_keys_is_nothing(kind: torch.dtype, rows: int) -> None:
    """Also where a row has nothing to see at all, in each precision, and where one mask is for all rows."""
    attention = Attention(16, heads=2).to(kind)
    x, memory = torch.randn(3, 4, 16, dtype=kind), torch.randn(3, 5, 16, dtype=kind)
    real = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])[:rows]
    with watch(attention, heads=[1], queries=[0, -1]) as seen:
        attention(x, memory, Mask(keys=real))
    (found,) = seen[""]
    exact, kv = Attention(16, heads=2).double(), attention.project(memory)
    exact.load_state_dict({name: t.double() for name, t in attention.state_dict().items()})
    kv = KV.of(kv.k.double(), kv.v.double())
    wanted = exact.weigh(x.double(), kv, Mask(keys=real))[:, 1:, [0, 3]]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=3 * float(torch.finfo(kind).eps) + 1e-9)
    hidden = ~real.expand(3, 5)[:, None, None].expand_as(found)
    assert (found[hidden] == 0).all()


def test_keys_and_pairs_are_watched_together() -> None:
    attention = Attention(8, heads=2).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    mask = Mask(keys=torch.tensor([[True, True, False]] * 2), pairs=torch.eye(3, dtype=torch.bool)[None, None])
    with watch(attention) as seen:
        attention(x, mask=mask)
    torch.testing.assert_close(seen[""][0], attention.weigh(x, attention.project(x), mask))


def test_queries_of_64_bits_are_multiplied_in_64() -> None:
    """Whatever autocast says, and however large they are."""
    attention, real = Attention(8).double(), torch.tensor([[True, False], [False, False]])
    x = 1e6 * torch.ones(2, 2, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16), watch(attention) as seen:
        attention(x, mask=Mask(keys=real))
    assert torch.equal(seen[""][0][:, 0, 0], torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_row_with_nothing_to_see_is_shown_as_nothing_under_autocast(kind: torch.dtype) -> None:
    """Where queries stay in 32 bits, as a cosine's do, and products are made in 16."""
    attention = Attention(16, heads=2, score="cosine")
    x, real = torch.randn(2, 3, 16), torch.tensor([[True, False, True], [False] * 3])
    with torch.autocast("cpu", kind), watch(attention) as seen:
        attention(x, mask=Mask(keys=real))
    torch.testing.assert_close(
        seen[""][0].sum(-1).float(), torch.ones(2, 2, 3) * real.any(1)[:, None, None], rtol=0, atol=1e-2
    )
