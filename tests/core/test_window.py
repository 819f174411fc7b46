from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.core.attention import Attention
from regard.core.mask import Mask
from regard.core.state import KV
from regard.core.window import WINDOWS, Global, LocalM, LocalP, View, make_window
from regard.errors import ConfigError

DIM, KEYS = 6, 9
LENGTHS = torch.tensor([9, 4, 1])
MASK = Mask(keys=torch.arange(KEYS) < LENGTHS[:, None])


def queries(rows: int = 3, count: int = 5) -> Tensor:
    return torch.randn(rows, count, DIM, dtype=torch.float64)


def seen(view: View, count: int = 5) -> Tensor:
    """(B, Q, K): who may look where."""
    drawn = view.mask.dense(count, KEYS)
    assert drawn is not None
    return drawn.squeeze(1)


def predicting(reach: int, std: float = 1.0) -> LocalP:
    window = LocalP(DIM, reach).double()
    for parameter in window.parameters():
        nn.init.normal_(parameter, std=std)
    return window


def weights(window: Global, attention: Attention, x: Tensor, kv: KV, mask: Mask) -> Tensor:
    """What a decoder uses: within the window, and faded."""
    view = window(x, 0, mask, kv.length, kv.rows)
    found = attention.weigh(x, kv, view.mask)
    return found if view.fading is None else found * view.fading


def test_a_window_as_wide_as_the_source_is_global() -> None:
    """σ → ∞ takes the fading away."""
    attention, x = Attention(DIM, score="additive", heads=2).double(), queries()
    kv = attention.project(torch.randn(3, KEYS, DIM, dtype=torch.float64))
    wide = predicting(KEYS)
    wide.deviation = math.inf
    for mask in (Mask(), MASK):
        wanted = weights(Global(), attention, x, kv, mask)
        for window in (LocalM(DIM, KEYS), wide):
            assert torch.equal(weights(window, attention, x, kv, mask), wanted)


@pytest.mark.parametrize("reach", [0, 2])
@pytest.mark.parametrize("step", [0, 3])
def test_local_m_moves_with_the_target_and_stops_at_the_last_real_word(reach: int, step: int) -> None:
    found = seen(LocalM(DIM, reach)(queries(), step, MASK, KEYS, 3))
    for row, length in enumerate(LENGTHS.tolist()):
        for t in range(5):
            at = min(step + t, length - 1)
            wanted = [i for i in range(length) if abs(i - at) <= reach]
            assert found[row, t].nonzero().flatten().tolist() == wanted


def test_local_m_moves_each_row_from_where_it_stands() -> None:
    x, window = queries(), LocalM(DIM, 1)
    found = seen(window(x, torch.tensor([4, 0, 2]), MASK, KEYS, 3))
    for row, step in enumerate((4, 0, 2)):
        assert torch.equal(found[row], seen(window(x, step, MASK, KEYS, 3))[row])


@pytest.mark.parametrize("reach", [1, 3])
def test_local_p_looks_around_the_place_it_predicts(reach: int) -> None:
    window, x = predicting(reach, std=2.0), queries()
    view = window(x, 0, MASK, KEYS, 3)
    assert view.fading is not None
    places = window.place(window.inner(x).tanh()).sigmoid()[..., 0].detach()
    assert places.min() < 0.2
    assert places.max() > 0.8
    for row, length in enumerate(LENGTHS.tolist()):
        for t in range(5):
            p = float(places[row, t]) * (length - 1)
            for i in range(KEYS):
                assert bool(seen(view)[row, t, i]) == (i < length and abs(i - math.floor(p)) <= reach)
                fading = math.exp(-((i - p) ** 2) / (2 * (reach / 2) ** 2))
                assert view.fading[row, 0, t, i].item() == pytest.approx(fading, rel=1e-12)


def test_local_p_reaches_from_the_first_word_to_the_last_real_one() -> None:
    window, x = predicting(1), queries()
    nn.init.eye_(window.inner.weight)
    for sign, wanted in ((-1000.0, torch.zeros(3)), (1000.0, LENGTHS - 1.0)):
        with torch.no_grad():
            window.place.weight.copy_(torch.full((1, DIM), sign))
        view = window(x.abs() + 1, 0, MASK, KEYS, 3)
        assert view.fading is not None
        assert torch.equal(view.fading.argmax(-1).squeeze(1), wanted.long()[:, None].expand(3, 5))
        assert torch.equal(view.fading.amax(-1), torch.ones(3, 1, 5, dtype=torch.float64))


def test_weights_of_local_p_fade_and_do_not_sum_to_one_again() -> None:
    attention, window, x = Attention(DIM, score="general").double(), predicting(2), queries()
    kv = attention.project(torch.randn(3, KEYS, DIM, dtype=torch.float64))
    view = window(x, 0, MASK, KEYS, 3)
    found = weights(window, attention, x, kv, MASK)
    inside = attention.weigh(x, kv, view.mask)
    torch.testing.assert_close(inside.sum(-1), torch.ones(3, 1, 5).double())  # softmaxed within the window, then faded
    assert torch.equal(found, inside * view.fading)
    assert (found >= 0).all()
    assert (found.masked_select(~seen(view)[:, None]) == 0).all()
    assert (found.sum(-1) <= 1).all()
    assert (found.sum(-1)[:2] < 0.999).all()


def test_the_predicted_place_is_learnt_through_the_fading() -> None:
    attention, window, x = Attention(DIM, score="dot").double(), predicting(2), queries()
    kv = attention.project(torch.randn(3, KEYS, DIM, dtype=torch.float64))
    attention.read(weights(window, attention, x, kv, MASK), kv).square().sum().backward()
    for parameter in window.parameters():
        assert parameter.grad is not None
        assert (parameter.grad != 0).any()


@pytest.mark.parametrize("mask", [MASK, Mask()], ids=["padded", "whole"])
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_hypotheses_of_one_sentence_share_its_memory(name: str, score: str, mask: Mask) -> None:
    attention, window = Attention(DIM, score=score, heads=2).double(), make_window(name, DIM, 2).double()
    x, memory = queries(rows=6), torch.randn(3, KEYS, DIM, dtype=torch.float64)
    own = Mask(keys=None if mask.keys is None else mask.keys.repeat_interleave(2, 0))
    shared, copied = attention.project(memory), attention.project(memory.repeat_interleave(2, 0))
    wanted = weights(window, attention, x, copied, own)
    torch.testing.assert_close(weights(window, attention, x, shared, mask), wanted)
    view = window(x, 0, mask, KEYS, 3)
    with regard.watch(attention, heads=[1], queries=[-1, 0]) as shown:
        looked = attention.look(x, shared, view.mask)
    inside = attention.weigh(x, copied, window(x, 0, own, KEYS, 6).mask)
    torch.testing.assert_close(looked, attention.read(inside, copied))
    torch.testing.assert_close(shown[""][0], inside[:, 1:, [4, 0]])


def test_a_window_without_width_cannot_fade() -> None:
    sentence = "^reach: window 'local-p' fades over half its reach, and 0 leaves nothing to see; write 1 or more$"
    with pytest.raises(ConfigError, match=sentence):
        make_window("local-p", DIM, 0)
