"""However the matrix is laid out, it is the product."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.core import linear
from regard.core.attention import Attention
from regard.core.head import Head
from regard.core.linear import Linear, pack
from regard.core.mask import Mask
from regard.core.watch import watch


@pytest.fixture(autouse=True)
def small_matrices_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LARGE", 1)


WHERE = {
    "near": ("AVX512", {"_of_intel": lambda: False}),
    "near and large": ("AVX512", {"_of_intel": lambda: False, "ALONE": 1}),
    "far": ("AVX512", {"_of_intel": lambda: False, "NEAR": 1}),
    "of Intel": ("AVX512", {"_of_intel": lambda: True}),
    "of Intel, several": ("AVX512", {"_of_intel": lambda: True, "WHOLE": 1}),
    "of Intel, turned": ("AVX512", {"_of_intel": lambda: True, "LONG": 1}),
    "turned": ("AVX2", {}),
    "too many to be turned": ("AVX2", {"TURNED": 1}),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 1), (3, 1), (5, 7), (1, 8), (4, 40), (0,), (0, 3)])
@pytest.mark.parametrize(("wide", "tall"), [(6, 6), (6, 20), (20, 6), (128, 300)])
def test_packed_it_is_torchs_linear(
    shape: tuple[int, ...], wide: int, tall: int, bias: bool, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers, others = WHERE[where]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: registers)
    for name, other in others.items():
        monkeypatch.setattr(linear, name, other)
    layer, x = Linear(wide, tall, bias=bias), torch.randn(*shape, wide)
    with torch.no_grad():
        plain = layer(x)
        assert_packed(pack(layer))
        torch.testing.assert_close(layer(x), plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            layer(x),
            nn.functional.linear(
                x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()
            ).float(),
            atol=1e-5,
            rtol=0,
        )


@pytest.mark.parametrize(("rows", "by"), [(1, "as it is"), (2, "as it is"), (300, "oneDNN")])
def test_on_intels_processors_little_work_goes_past_onednn(rows: int, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(linear, "_of_intel", lambda: True)
    asked: list[str] = []
    monkeypatch.setattr(linear, "_onednn", lambda x, *_: asked.append("oneDNN") or x)
    monkeypatch.setattr(linear.F, "linear", lambda x, **_: asked.append("as it is") or x)
    weight, x = torch.randn(128, 96), torch.randn(rows, 96)
    multiply = linear.onednn(weight, None)
    assert multiply is not None
    multiply(x)
    assert asked == [by]


def test_whose_processor_it_is_stands_in_a_file_or_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["vendor_id\t: GenuineIntel\n", "vendor_id\t: AuthenticAMD\n", OSError()]

    def read(*_: object) -> str:
        if isinstance(found := told.pop(0), OSError):
            raise found
        return found

    monkeypatch.setattr(linear.Path, "read_text", read)
    monkeypatch.setattr(linear.platform, "processor", lambda: "Intel64 Family 6 Model 85, GenuineIntel")
    assert [linear._of_intel.__wrapped__() for _ in range(3)] == [True, False, True]


def test_a_heads_logits_are_packed_too() -> None:
    words = nn.Embedding(11, 6)
    head, x = Head(6, 11, tied=words), torch.randn(3, 6)
    with torch.no_grad():
        assert_packed(pack(head))
        torch.testing.assert_close(head.logits(x), x @ words.weight.T, atol=1e-6, rtol=0)


OPTIMIZERS = {
    "fused adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1),
    "fused sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, fused=True),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_packed_copy_is_not_used_once_it_has_been_trained(optimizer: str) -> None:
    layer, x = pack(Linear(6, 8)), torch.randn(2, 6)
    step = OPTIMIZERS[optimizer](layer.parameters())
    for _ in range(2):
        layer(x).square().sum().backward()
        step.step()
        step.zero_grad()
        with torch.no_grad():
            torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
        pack(layer)


def test_a_packed_model_may_be_asked_in_16_bits_or_be_made_where_nothing_is_tracked() -> None:
    layer, x = pack(Linear(64, 80)), torch.randn(2, 64)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
    with torch.inference_mode():
        untracked = pack(Linear(6, 8))
        assert_packed(untracked)
    with torch.no_grad():
        torch.testing.assert_close(untracked(x[:, :6]), x[:, :6] @ untracked.weight.T + untracked.bias)


def test_a_packed_model_can_be_saved_whole(tmp_path: Path) -> None:
    layer, x = pack(Linear(6, 8)), torch.randn(2, 6)
    torch.save(layer, tmp_path / "layer.pt")
    again = torch.load(tmp_path / "layer.pt", weights_only=False)
    assert_packed(again)
    with torch.no_grad():
        torch.testing.assert_close(again(x), x @ layer.weight.T + layer.bias)


def test_a_packed_copy_is_not_used_once_it_is_stale() -> None:
    layer, x = pack(Linear(6, 8)), torch.randn(2, 6)
    with torch.no_grad():
        layer.weight.mul_(2.0)  # as an optimizer does
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
        pack(layer).load_state_dict(Linear(6, 8).state_dict())
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
        pack(layer).double()
        assert layer(x.double()).dtype == torch.float64
        layer.float()
        torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


def test_a_copy_of_a_packed_layer_has_its_own_weights() -> None:
    layer, x = pack(Linear(6, 8)), torch.randn(2, 6)
    twin = copy.deepcopy(layer)
    assert_packed(twin)
    assert_packed(layer)
    with torch.no_grad():
        before = layer(x)
        torch.testing.assert_close(twin(x), before)
        twin.weight.add_(1.0)
        torch.testing.assert_close(twin(x), x @ twin.weight.T + twin.bias)
        assert torch.equal(layer(x), before)


def test_a_copy_of_a_packed_attention_has_its_own_weights() -> None:
    attention, x = pack(Attention(8, heads=2)).eval(), torch.randn(2, 3, 8)
    twin = copy.deepcopy(attention)
    with torch.no_grad():
        before = attention.inward(x)[0]
        assert twin.packed.fits(x)
        torch.testing.assert_close(twin.inward(x)[0], before)
        twin.value.bias.add_(1.0)
        assert not twin.packed.fits(x)
        assert torch.equal(attention.inward(x)[0], before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("large", [1, 10**9])
def test_a_packed_attention_looks_inward_with_one_product(
    bias: bool, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "LARGE", large)
    attention, mask = Attention(8, heads=2, bias=bias).eval(), Mask(causal=True)
    first, then = torch.randn(3, 4, 8), torch.randn(3, 1, 8)

    def looked() -> list[torch.Tensor]:
        with torch.no_grad(), watch(attention) as seen:
            y, past = attention.inward(first, None, mask)
            z, past = attention.inward(then, past, mask)
        return [y, z, past.keys, past.values, *seen[""]]

    plain = looked()
    pack(attention)
    monkeypatch.setattr(attention, "project", None)  # not asked any more
    for a, b in zip(looked(), plain, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_a_packed_attention_that_is_trained_looks_with_its_new_weights() -> None:
    attention, x = pack(Attention(8, heads=2)), torch.randn(2, 3, 8)
    attention.inward(x)[0].square().sum().backward()
    assert attention.score.query.weight.grad is not None
    with torch.no_grad():
        attention.value.bias.add_(1.0)
        torch.testing.assert_close(attention.inward(x)[0], attention(x))


@pytest.mark.parametrize("learning", [True, False])
def test_whoever_hooks_or_replaces_one_of_three_matrices_is_asked(learning: bool) -> None:
    attention, x = Attention(8, heads=2), torch.randn(2, 3, 8)
    called: list[str] = []
    if not learning:
        pack(attention.eval())

    def inward() -> torch.Tensor:
        with torch.set_grad_enabled(learning):
            return attention.inward(x)[0]

    before = inward()
    hooks = [
        attention.score.query.register_forward_hook(lambda *_: called.append("query")),
        attention.value.register_forward_pre_hook(lambda *_: called.append("value")),
    ]
    torch.testing.assert_close(inward(), before)
    assert sorted(called) == ["query", "value"]
    for hook in hooks:
        hook.remove()
    for other in (Linear(8, 8), torch.nn.Sequential(Linear(8, 8))):
        attention.value = other
        torch.testing.assert_close(inward(), attention(x))


def test_a_joined_matrix_is_kept_in_one_layout() -> None:
    attention = Attention(8, heads=2)
    assert pack(attention, lambda weight, bias: lambda x: x @ weight.T).packed.whole is None
    assert len(pack(attention, lambda weight, bias: None).packed.whole[0]) == 24


def test_scores_of_other_widths_or_without_projections_are_left_alone() -> None:
    for attention in (Attention(8, score="dot"), Attention(8, memory_dim=6)):
        assert pack(attention).packed is None


def test_gradients_are_torchs_packed_or_not() -> None:
    ours, x = pack(Linear(5, 3)), torch.randn(2, 5)
    theirs = nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    for layer in (ours, theirs):
        layer(x).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


def assert_packed(layer: linear.Product) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN, so nothing is packed")
    assert layer.packed is not None
    with torch.no_grad():
        assert layer.packed.fits(layer.weight)
