"""A model is like itself until something of it is replaced, moved, trained or set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.core.changes import Likeness, meddled, parts_of, replaced
from regard.models import gpt, recurrent, seq2seq, transformer

WAYS: dict[str, Callable[[gpt.GPT], object]] = {
    "a weight trained in place": lambda model: nn.init.zeros_(model.norm.bias),
    "a weight replaced": lambda model: setattr(model.norm, "bias", nn.Parameter(torch.zeros(8))),
    "a part replaced": lambda model: setattr(model, "norm", nn.LayerNorm(8)),
    "a part taken away": lambda model: setattr(model, "norm", nn.Identity()),
    "an epsilon": lambda model: setattr(model.norm, "eps", 0.5),
    "an activation": lambda model: setattr(model.blocks[0].feed_forward, "activation", F.relu),
    "a method": lambda model: setattr(model.head, "logits", model.head.logits),
    "a mode": lambda model: model.blocks[1].train(),
    "a move": lambda model: model.double(),
}
SYSTEMS = {
    "gpt": lambda: gpt.GPT(gpt.Config(vocab=9, dim=8, heads=2, layers=2, context=2048)),
    "transformer": lambda: transformer.Transformer(transformer.Config(vocab=9, dim=8, heads=2, layers=1, hidden=8)),
    "seq2seq": lambda: seq2seq.Seq2Seq(seq2seq.Config(vocab=9, dim=8, embedding=8)),
    "recurrent": lambda: recurrent.LanguageModel(recurrent.Config(vocab=9, dim=8, embedding=8)),
}


def likeness(model: nn.Module) -> Likeness:
    return Likeness(parts_of(model))


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_changed_is_seen(way: str) -> None:
    model = SYSTEMS["gpt"]().eval()
    before = likeness(model)
    assert likeness(model).same(before)
    WAYS[way](model)
    assert not likeness(model).same(before)


@pytest.mark.parametrize("system", SYSTEMS)
def test_asking_a_model_changes_nothing(system: str) -> None:
    """Else whatever was made of it would be made anew each time."""
    model = SYSTEMS[system]().eval()
    before = likeness(model)
    with torch.inference_mode():
        state = model.start(torch.ones(2, 3, dtype=torch.long)) if model.sourced else model.start(rows=2)
        for _ in range(2):
            _, state = model.step(torch.ones(2, 1, dtype=torch.long), state)
    assert likeness(model).same(before)


def test_parts_are_all_modules() -> None:
    model = SYSTEMS["transformer"]()
    assert set(parts_of(model)) == set(model.modules())


def test_a_method_of_ones_own_is_no_setting() -> None:
    part = SYSTEMS["gpt"]().eval().head
    assert not replaced(part)
    part.bias = None
    part.spread = partial(part.spread)
    assert not replaced(part)
    part.logits = part.logits
    assert replaced(part)


def test_a_part_is_meddled_with_while_it_learns_or_somebody_listens() -> None:
    part = nn.Linear(2, 2).eval()
    assert not meddled(part)
    assert meddled(part.train())
    hook = part.eval().register_forward_pre_hook(lambda *_: None)
    assert meddled(part)
    hook.remove()
    assert not meddled(part)
