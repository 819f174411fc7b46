from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent

from regard.core.attention import Attention
from regard.core.choice import choose
from regard.core.mask import Mask

CHANCES = torch.tensor([0.05, 0.4, 0.0, 0.3, 0.25], dtype=torch.float64)


def some_weights(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).softmax(-1).requires_grad_()


def test_keys_are_drawn_as_often_as_their_weights_say() -> None:
    rows = 20_000
    chosen, _, _ = choose(CHANCES.expand(rows, 1, 1, 5), draw=True)
    counts, wanted = chosen.sum((0, 1, 2)), rows * CHANCES
    assert counts[2] == 0
    possible = CHANCES > 0
    assert ((counts - wanted).square() / wanted)[possible].sum() < 16.3  # chi-square, 3 degrees of freedom: p = 0.001


def test_rows_and_heads_are_drawn_apart() -> None:
    chosen, _, _ = choose(torch.full((200, 2, 3, 4), 0.25), draw=True)
    at = chosen.argmax(-1).flatten(1).T  # six places of each row
    for i in range(6):
        for j in range(i):
            assert 0.1 < (at[i] == at[j]).double().mean() < 0.4  # a quarter, if they know nothing of each other


def test_a_choice_says_how_likely_it_was_and_how_open() -> None:
    """In value and in gradient what torch.distributions says, with the heads as one choice."""
    weights = some_weights(3, 2, 4, 5)
    chosen, chance, entropy = choose(weights, draw=True)
    assert torch.equal(chosen.sum(-1), torch.ones(3, 2, 4, dtype=torch.float64))
    assert set(chosen.unique().tolist()) == {0.0, 1.0}
    among = Independent(Categorical(probs=weights.transpose(1, 2)), 1)
    wanted = among.log_prob(chosen.argmax(-1).transpose(1, 2)), among.entropy()
    for ours, theirs in zip((chance, entropy), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        towards = torch.randn_like(ours)
        one, other = (torch.autograd.grad((y * towards).sum(), weights, retain_graph=True)[0] for y in (ours, theirs))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_keys_without_weight_leave_numbers_and_gradients_finite() -> None:
    weights = CHANCES.expand(2, 1, 3, 5).clone().requires_grad_()
    _, chance, entropy = choose(weights, draw=True)
    torch.testing.assert_close(entropy, torch.full((2, 3), Categorical(CHANCES).entropy().item(), dtype=torch.float64))
    (grad,) = torch.autograd.grad((chance + entropy).sum(), weights)
    assert torch.isfinite(grad).all()


def test_weights_that_have_faded_are_chosen_from_as_if_they_had_not() -> None:
    weights = some_weights(2, 1, 3, 5)
    _, *whole = choose(weights, draw=False)
    _, *faded = choose(0.3 * weights, draw=False)
    for one, other in zip(whole, faded, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_likeliest_is_the_limit_of_soft_attention_at_no_temperature() -> None:
    table = torch.randn(3, 2, 4, 7, dtype=torch.float64)
    chosen, chance, _ = choose(table.softmax(-1), draw=False)
    apart = [((table / temperature).softmax(-1) - chosen).abs().max() for temperature in (1.0, 0.1, 0.01, 1e-6)]
    assert apart == sorted(apart, reverse=True)
    assert apart[-1] == 0
    torch.testing.assert_close(chance, table.softmax(-1).amax(-1).log().sum(1))


def test_what_is_read_is_the_value_that_was_chosen() -> None:
    attention = Attention(6, score="dot").double()
    x, memory = torch.randn(3, 4, 6, dtype=torch.float64), torch.randn(3, 5, 6, dtype=torch.float64)
    kv = attention.project(memory)
    chosen, _, _ = choose(attention.weigh(x, kv, Mask(keys=torch.arange(5) < torch.tensor([[5], [3], [1]]))), draw=True)
    read = attention.read(chosen, kv)
    for row in range(3):
        for query in range(4):
            assert torch.equal(read[row, query], memory[row, chosen[row, 0, query].argmax()])
    assert torch.equal(read[2], memory[2, :1].expand(4, 6))


def test_only_training_draws() -> None:
    weights = some_weights(4, 2, 6, 5)
    before = torch.get_rng_state()
    first, again = (choose(weights, draw=False)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    first, again = (choose(weights, draw=True)[0] for _ in range(2))
    assert not torch.equal(first, again)
