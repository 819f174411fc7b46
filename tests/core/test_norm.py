"""What each norm is, what it does not see, and what becomes of the laws in a Transformer that is built of it."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any, TypeVar, get_args

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.cases import Case, make_case
from regard.config import merge, read_toml
from regard.core.block import RESIDUALS, PostNorm
from regard.core.norm import NORMS, BatchNorm, LayerNorm, UnbiasedLayerNorm
from regard.errors import ConfigError
from regard.laws import LAWS
from regard.models.transformer import Config, Transformer
from regard.recipes import find_recipe
from regard.weights import put_weights, weights

B, T, DIM, VOCAB = 5, 7, 6, 13
TINY = 1e-30  # no ε to speak of: PyTorch refuses a batch norm with none

M = TypeVar("M", bound=nn.Module)

norms_of_a_position = pytest.mark.parametrize("norm", [LayerNorm, UnbiasedLayerNorm])
every_norm = pytest.mark.parametrize("norm", NORMS)
both_orders = pytest.mark.parametrize("order", RESIDUALS)
factors = st.floats(0.01, 100)
shifts = st.floats(-100, 100)


def numbers(*shape: int) -> Tensor:
    return 3 * torch.randn(shape or (B, T, DIM), dtype=torch.float64) + 2


def randomised(norm: M) -> M:
    """Gains of one and biases of zero hide mistakes in them."""
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm.double()


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-10)


def agree(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


# ------------------------------------------------------------------ the formulas


def test_layer_norm_is_its_formula() -> None:
    """Mean and variance of each position's features: 0 and 1 before γ and β."""
    norm, x = randomised(LayerNorm(DIM)), numbers()
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    agree(norm(x), norm.weight * (x - mean) / (variance + 1e-5).sqrt() + norm.bias)
    plain = LayerNorm(DIM, epsilon=0).double()(x)
    agree(plain.mean(-1), torch.zeros(B, T).double())
    agree(plain.var(-1, correction=0), torch.ones(B, T).double())


def test_batch_norm_is_its_formula() -> None:
    """Mean and variance of each feature over all positions."""
    norm, x = randomised(BatchNorm(DIM)), numbers()
    mean, variance = x.mean((0, 1)), x.var((0, 1), correction=0)
    agree(norm(x), norm.weight * (x - mean) / (variance + 1e-5).sqrt() + norm.bias)
    plain = BatchNorm(DIM, epsilon=TINY).double()(x)
    agree(plain.mean((0, 1)), torch.zeros(DIM).double())
    agree(plain.var((0, 1), correction=0), torch.ones(DIM).double())


def test_the_unbiased_norm_is_its_formula() -> None:
    norm, x = randomised(UnbiasedLayerNorm(DIM, epsilon=0.1)), numbers()
    spread = (x.var(-1, keepdim=True, correction=0) * DIM / (DIM - 1)).sqrt()
    agree(norm(x), norm.weight * (x - x.mean(-1, keepdim=True)) / (spread + 0.1) + norm.bias)


@given(st.integers(2, 40))
def test_without_epsilon_the_unbiased_norm_is_layer_norm_but_for_a_factor(dim: int) -> None:
    x = numbers(3, dim)
    ours, other = LayerNorm(dim, epsilon=0).double()(x), UnbiasedLayerNorm(dim, epsilon=0).double()(x)
    agree(other, ours * ((dim - 1) / dim) ** 0.5)


def test_epsilon_decides_what_becomes_of_equal_features() -> None:
    x = torch.full((2, DIM), 3.0)
    assert LayerNorm(DIM, epsilon=0)(x).isnan().all()
    assert torch.equal(LayerNorm(DIM)(x), torch.zeros(2, DIM))


def test_batch_norm_is_layer_norm_with_the_axes_changed() -> None:
    """On images (N, C, H, W): a channel's mean over all else, which is a row's mean once channels are the rows."""
    x = numbers(2, 3, 4, 5)
    ours = BatchNorm(3).double()(x.movedim(1, -1)).movedim(-1, 1)
    rows = x.movedim(1, 0).flatten(1)  # (C, N·H·W)
    turned = LayerNorm(rows.shape[1]).double()(rows).view(3, 2, 4, 5).movedim(0, 1)
    agree(ours, turned)
    agree(ours, nn.BatchNorm2d(3).double()(x))


# ------------------------------------------------------------------ what they do not see


@norms_of_a_position
@given(factor=factors, shift=shifts)
def test_layer_norm_does_not_see_the_scale_of_a_position(norm: type[nn.Module], factor: float, shift: float) -> None:
    """Each position has a scale and a shift of its own; batch norm sees them."""
    x, by = numbers(), 1 + factor * torch.rand(B, T, 1).double()
    plain = norm(DIM, epsilon=0).double()
    agree(plain(by * x + shift * by), plain(x))
    batch = BatchNorm(DIM, epsilon=TINY).double()
    assert not close(batch(by * x), batch(x))


@given(factor=factors)
def test_layer_norm_does_not_see_the_scale_of_the_whole_matrix_before_it(factor: float) -> None:
    """LN(cWx) = LN(Wx); a single row of W it sees."""
    x, matrix, norm = numbers(), numbers(DIM, DIM), LayerNorm(DIM, epsilon=0).double()
    agree(norm(x @ (factor * matrix)), norm(x @ matrix))
    one = torch.ones(DIM).double()
    one[0] = 1 + factor
    assert not close(norm(x @ (one * matrix)), norm(x @ matrix))


@given(factor=factors, shift=shifts)
def test_batch_norm_does_not_see_the_scale_of_a_feature(factor: float, shift: float) -> None:
    """Each feature, so each row of the matrix before it, has a scale and a shift of its own; layer norm sees them."""
    x, by = numbers(), 1 + factor * torch.rand(DIM).double()
    batch = BatchNorm(DIM, epsilon=TINY).double()
    agree(batch(by * x + shift * by), batch(x))
    layer = LayerNorm(DIM, epsilon=0).double()
    assert not close(layer(by * x), layer(x))


@norms_of_a_position
def test_the_gradient_of_layer_norm_knows_neither_shift_nor_scale(norm: type[nn.Module]) -> None:
    """It is orthogonal to 1 and to x̂: along these two, the output stays."""
    plain, x = norm(DIM, epsilon=0).double(), numbers().requires_grad_()
    y = plain(x)
    (grad,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert grad.abs().max() > 0.01
    assert grad.sum(-1).abs().max() < 1e-10
    assert (grad * y).sum(-1).abs().max() < 1e-10


def test_the_gradient_of_batch_norm_is_so_for_each_feature() -> None:
    plain, x = BatchNorm(DIM, epsilon=TINY).double(), numbers().requires_grad_()
    y = plain(x)
    (grad,) = torch.autograd.grad(y, x, torch.randn_like(y))
    assert grad.abs().max() > 0.01
    assert grad.sum((0, 1)).abs().max() < 1e-10
    assert (grad * y).sum((0, 1)).abs().max() < 1e-10


# ------------------------------------------------------------------ alone and in a batch, training and evaluation


@every_norm
def test_only_batch_norm_in_training_asks_the_neighbours(norm: str) -> None:
    made, x = randomised(NORMS[norm](DIM)), numbers()
    alone = torch.cat([made(row) for row in x.split(1)])
    assert close(alone, made(x)) == (norm != "batch")
    made.eval()
    assert close(torch.cat([made(row) for row in x.split(1)]), made(x))


@every_norm
def test_only_batch_norm_is_another_in_evaluation(norm: str) -> None:
    made, x = randomised(NORMS[norm](DIM)), numbers()
    assert close(made(x), made.eval()(x)) == (norm != "batch")


def test_in_evaluation_batch_norm_is_the_affine_map_that_it_stored() -> None:
    norm = randomised(BatchNorm(DIM))
    for _ in range(3):
        norm(numbers())
    norm.eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    slope = norm.weight / (norm.running_var + 1e-5).sqrt()
    x = numbers()
    agree(norm(x), slope * (x - norm.running_mean) + norm.bias)


def test_running_averages_move_by_a_tenth_and_are_of_the_unbiased_variance() -> None:
    """Although the batch itself is divided by the biased one."""
    norm, x = BatchNorm(DIM).double(), numbers()
    norm(x)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    agree(norm.running_mean, 0.1 * x.mean((0, 1)))
    agree(norm.running_var, 0.9 + 0.1 * x.var((0, 1), correction=1))


def test_running_averages_are_saved_with_the_weights() -> None:
    one, other, x = BatchNorm(DIM), BatchNorm(DIM), numbers().float()
    one(x)
    put_weights(other, weights(one))
    assert torch.equal(one.eval()(x), other.eval()(x))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_weights_of_one_precision_take_numbers_of_another(norm: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        y = NORMS[norm](DIM)(numbers().bfloat16())
    assert y.isfinite().all()


# ------------------------------------------------------------------ in a Transformer


def transformer(**settings: Any) -> Transformer:
    small = {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "dropout": 0.0}
    return Transformer(Config(**{**small, **settings}))


def case(norm: str, order: str) -> Case:
    """Random gains, and running averages of a few batches: as after some training."""
    model = transformer(normalise=norm, norm=order)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    for seed in range(3):
        some = make_case(model, VOCAB, seed=seed)
        model(some.source, some.real, some.target)
    return make_case(model, VOCAB)


def test_every_norm_can_be_written_in_a_recipe() -> None:
    assert get_args(Config.model_fields["normalise"].annotation) == tuple(NORMS)


@every_norm
@both_orders
def test_every_law_holds_in_evaluation(norm: str, order: str) -> None:
    some = case(norm, order)
    for law in LAWS.values():
        assert law.check(some) <= law.limit, law.says


@pytest.mark.parametrize("law", ["padding", "no look-ahead", "chunks"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_in_training_batch_norm_sees_padding_and_words_to_come(norm: str, law: str) -> None:
    some = case(norm, "pre")
    some.model.train()
    assert (LAWS[law].check(some) <= LAWS[law].limit) == (norm == "layer")


@every_norm
@both_orders
def test_the_norm_of_the_settings_stands_everywhere(norm: str, order: str) -> None:
    """Three in a decoder's block, two in an encoder's, and one behind each stack where the order is "pre"."""
    model = transformer(normalise=norm, norm=order)
    names = [name for name, part in model.named_modules() if type(part) is NORMS[norm] and "norm" in name]
    closing = ["encoder_norm", "decoder_norm"] if order == "pre" or norm == "none" else []
    assert [name for name in names if name.startswith(("encoder.", "decoder."))] == [
        *(f"encoder.{i}.around_{part}.norm" for i in range(2) for part in ("attention", "feed_forward")),
        *(f"decoder.{i}.around_{part}.norm" for i in range(2) for part in ("attention", "cross", "feed_forward")),
    ]
    assert [name for name in names if name in ("encoder_norm", "decoder_norm")] == closing
    gains = [name for name, _ in model.named_parameters() if "norm" in name]
    assert gains == ([] if norm == "none" else [f"{name}.{part}" for name in names for part in ("weight", "bias")])


def test_settings_that_name_no_norm_mean_layer_norm() -> None:
    """As in every run of before there was a choice."""
    assert [type(part.norm) for part in transformer().modules() if isinstance(part, PostNorm)] == [LayerNorm] * 10


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_training_moves_the_running_averages_and_asking_does_not(norm: str) -> None:
    some = case(norm, "post")
    before = copy.deepcopy(dict(some.model.named_buffers()))
    some.model(some.source, some.real, some.target)
    assert all(torch.equal(before[name], now) for name, now in some.model.named_buffers())
    some.model.train()(some.source, some.real, some.target)
    moved = [name for name, now in some.model.named_buffers() if not torch.equal(before[name], now)]
    assert bool(moved) == (norm == "batch")


@pytest.mark.storm
def test_without_a_warm_up_twelve_layers_stall_in_post_norm_and_learn_in_pre_norm(tmp_path: Path) -> None:
    """Nats a token, held out, after the recipe's 150 steps at a constant rate: measured 3.54 and 1.12."""
    found = {}
    for order in RESIDUALS:
        values = merge(read_toml(find_recipe("norms-depth")), {"model": {"norm": order}})
        folder = tiny.train(tmp_path / order, values)
        found[order] = math.log(json.loads((folder / "evaluation.json").read_text())["perplexity"]["value"])
    assert found["post"] > 3.0
    assert found["pre"] < 1.6


# ------------------------------------------------------------------ what cannot be


def test_one_position_has_no_variance_to_divide_by() -> None:
    sentence = "^norm 'batch' averages over positions, but one came; write 'layer', or larger batches$"
    with pytest.raises(ConfigError, match=sentence):
        BatchNorm(DIM)(torch.randn(1, 1, DIM))
    BatchNorm(DIM).eval()(torch.randn(1, 1, DIM))


def test_one_feature_has_no_unbiased_variance() -> None:
    sentence = "^norm 'layer_unbiased' divides by dim − 1, but dim=1; write 'layer', or a larger dim$"
    with pytest.raises(ConfigError, match=sentence):
        UnbiasedLayerNorm(1)


def test_an_unknown_norm_is_answered_with_those_there_are() -> None:
    sentence = "^normalise: must be 'layer', 'layer_unbiased', 'batch' or 'none', but it is \"rms\"$"
    with pytest.raises(ConfigError, match=sentence):
        Config(normalise="rms")
