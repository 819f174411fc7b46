from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.core.position import POSITIONS, Halves, Learned, Sinusoidal, sinusoid
from regard.errors import ConfigError

widths = st.integers(1, 16).map(lambda half: 2 * half)
places = st.integers(0, 2000)


def waves(*positions: int, dim: int) -> Tensor:
    return sinusoid(torch.tensor(positions, dtype=torch.float64), dim)


def test_the_formula_of_the_paper() -> None:
    table = waves(0, 3, dim=6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    angles = torch.tensor([3 / 10_000 ** (2 * i / 6) for i in range(3)], dtype=torch.float64)
    torch.testing.assert_close(table[1, 0::2], angles.sin())
    torch.testing.assert_close(table[1, 1::2], angles.cos())


@given(places, widths)
def test_every_position_has_the_same_length(p: int, dim: int) -> None:
    assert abs(float(waves(p, dim=dim).square().sum()) - dim / 2) < 1e-12


@given(places, places, st.integers(0, 50), widths)
def test_a_dot_product_tells_the_distance_alone(p: int, q: int, apart: int, dim: int) -> None:
    a, b, c, d = waves(p, p + apart, q, q + apart, dim=dim)
    assert abs(float(a @ b - c @ d)) < 1e-10


@given(places, st.integers(-50, 50), widths)
def test_a_shift_is_a_rotation(p: int, shift: int, dim: int) -> None:
    """PE(p + τ) = R(τ) · PE(p), where R does not know p."""
    before, after = waves(p, p + shift, dim=dim).unflatten(1, (-1, 2))
    sin, cos = waves(shift, dim=dim).unflatten(1, (-1, 2))[0].unbind(1)
    turned = torch.stack([before[:, 0] * cos + before[:, 1] * sin, before[:, 1] * cos - before[:, 0] * sin], 1)
    torch.testing.assert_close(turned, after, rtol=0, atol=1e-10)


def test_an_odd_width_leaves_the_last_cosine_out() -> None:
    assert waves(4, 7, dim=5).shape == (2, 5)
    rates = [10_000 ** (-2 * i / 5) for i in range(3)]
    torch.testing.assert_close(waves(7, dim=5)[0, 4], torch.tensor(7 * rates[2], dtype=torch.float64).sin())


def test_the_table_grows_and_stays_the_same() -> None:
    short, long = Sinusoidal(8, 4), Sinusoidal(8, 64)
    early = short(0, 4).clone()
    assert torch.equal(short(2, 30), long(2, 30))
    assert torch.equal(short(0, 4), early)
    assert not list(short.state_dict())  # nothing to save: the formula is enough


class Overtaken(Sinusoidal):
    """Whenever its table has grown, another thread puts in its place the one that it was about to make."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value[:6] if isinstance(value, Tensor) else value)


def test_a_table_that_two_threads_let_grow_is_long_enough_for_both() -> None:
    assert len(Overtaken(8, 4)(0, 9)) == 9


def test_the_table_grows_in_the_precision_of_the_model() -> None:
    positions = Sinusoidal(8, 4).to(torch.bfloat16)
    assert positions(0, 9).dtype == torch.bfloat16


def test_a_table_grown_while_decoding_serves_in_training() -> None:
    positions = Sinusoidal(8, 4)
    with torch.inference_mode():
        positions(0, 9)
    x = torch.randn(9, 8, requires_grad=True)
    (x * 2 + positions(0, 9)).square().sum().backward()
    assert x.grad is not None
    positions.table.add_(0.0)  # as whoever spreads buffers over processes writes to them


def test_learned_positions_go_on_from_where_a_step_stands() -> None:
    positions = Learned(4, 10)
    assert torch.equal(torch.cat([positions(0, 3), positions(3, 2)]), positions(0, 5))


@given(st.integers(1, 20), st.integers(1, 30))
def test_halves_are_the_same_waves_in_another_order(dim: int, length: int) -> None:
    paper, halves = Sinusoidal(dim, 8)(0, length), Halves(dim, 8)(0, length)
    sines = (dim + 1) // 2
    assert torch.equal(halves[:, :sines], paper[:, 0::2])
    assert torch.equal(halves[:, sines:], paper[:, 1::2])


@pytest.mark.parametrize("kind", POSITIONS)
def test_an_offset_is_where_the_first_token_stands(kind: str) -> None:
    torch.manual_seed(0)
    plain = POSITIONS[kind](4, 12)
    torch.manual_seed(0)
    assert torch.equal(POSITIONS[kind](4, 9, offset=3)(1, 5), plain(4, 5))


@pytest.mark.parametrize("kind", POSITIONS)
@pytest.mark.parametrize("offset", [0, 3])
def test_each_row_may_stand_at_a_place_of_its_own(kind: str, offset: int) -> None:
    positions = POSITIONS[kind](4, 40, offset=offset)
    found = positions(30, 2, torch.tensor([5, 30, 0]))
    for row, start in enumerate((5, 30, 0)):
        assert torch.equal(found[row], positions(start, 2))


def test_a_table_grows_to_where_the_furthest_row_stands() -> None:
    assert torch.equal(Sinusoidal(4, 4)(50, 1, torch.tensor([2, 50]))[1], Sinusoidal(4, 64)(50, 1))


def test_learned_positions_end() -> None:
    with pytest.raises(ConfigError, match="but the learned positions end at 10"):
        Learned(4, 10, offset=5)(8, 3)
    sentence = (
        "a sequence of 11 tokens came, but the learned positions end at 10; "
        "shorten it, or train with a larger model.context or with sinusoidal positions"
    )
    with pytest.raises(ConfigError, match=sentence):
        Learned(4, 10)(8, 3)
