"""Attention of short rows by our own kernel is that of each row alone. Triton interprets it where there is no GPU;
REGARD_DEVICE=cuda runs it as it is."""

from __future__ import annotations

import os
import random

import pytest
import torch
from along import along_rows
from torch import Tensor

from regard.config.task import RewriteTask
from regard.core import spans
from regard.core.spans import SteadySpans
from regard.data.batch import Batch
from regard.tasks.rewrite import Rewrite

pytest.importorskip("triton", reason="Triton is not installed; make storm installs it")

from regard.fast import quicken, short
from regard.models import build, schema

DEVICE = torch.device(os.environ.get("REGARD_DEVICE", "cpu"))
KIND, NEAR = (torch.float32, 1e-5) if DEVICE.type == "cpu" else (torch.bfloat16, 2e-2)
pytestmark = [] if DEVICE.type == "cuda" else [pytest.mark.storm]


def starts(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)


def heads(length: int, width: int = 16) -> Tensor:
    return torch.randn(length, 2, width, device=DEVICE, dtype=KIND, requires_grad=True)


def learnt(look: spans.LookAlong, some: list[Tensor], *how: object, causal: bool) -> list[Tensor]:
    y = look(*some, *how, causal=causal, dropout=0.0, scale=0.3)  # type: ignore[arg-type]
    towards = torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y)
    return [y, *torch.autograd.grad((y.float() * towards).sum(), some)]


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize(
    ("asking", "asked", "causal"),
    [
        ((3, 0, 16, 1, 9), (3, 0, 16, 1, 9), False),
        ((3, 0, 16, 1, 9), (3, 0, 16, 1, 9), True),
        ((5, 2, 0, 17, 4), (1, 33, 6, 0, 20), False),  # nobody asks, and there is nothing to see
        ((64, 31), (64, 31), True),
    ],
)
def test_each_row_is_read_alone(asking: tuple[int, ...], asked: tuple[int, ...], causal: bool, width: int) -> None:
    some = [heads(sum(lengths), width) for lengths in (asking, asked, asked)]
    how = starts(*asking), starts(*asked), (max(asking), max(asked))
    ours = learnt(short.look_along, some, *how, causal=causal)
    exact = [t.detach().float().requires_grad_() for t in some]
    for one, other in zip(ours, learnt(along_rows, exact, *how, causal=causal), strict=True):
        torch.testing.assert_close(one.float(), other, rtol=NEAR, atol=NEAR)


def test_heads_may_lie_between_others() -> None:
    """As they come from a product of all three."""
    where, longest = starts(7, 4), (7, 7)
    whole = torch.randn(11, 3, 2, 16, device=DEVICE, dtype=KIND, requires_grad=True)
    found = []
    for some in (whole.unbind(1), [t.contiguous() for t in whole.unbind(1)]):
        y = short.look_along(*some, where, where, longest, causal=True, dropout=0.0, scale=0.25)
        found += [y, *torch.autograd.grad(y.square().sum(), whole)]
    torch.testing.assert_close(found[:2], found[2:], rtol=0, atol=0)


def test_what_is_long_or_odd_is_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def library(q: Tensor, *_: object, **how: object) -> Tensor:
        asked.append(how)
        return q

    monkeypatch.setattr(spans, "look_along", library)
    where, how = starts(3), {"causal": False, "dropout": 0.0, "scale": 1.0}
    short.look_along(*(heads(3) for _ in range(3)), where, where, (3, 3), **how)  # type: ignore[arg-type]
    assert not asked
    for width, longest, change in [(16, 65, {}), (24, 3, {}), (16, 3, {"dropout": 0.1})]:
        short.look_along(*(heads(3, width) for _ in range(3)), where, where, (3, longest), **{**how, **change})  # type: ignore[arg-type]
    short.look_along(heads(3), heads(3), heads(3, 32), where, where, (3, 3), **how)  # type: ignore[arg-type]
    assert len(asked) == 4


def test_a_gradient_may_be_one_number_for_all() -> None:
    """As that of a sum is: nothing of it lies side by side."""
    some, where = [heads(5) for _ in range(3)], starts(3, 2)
    how = {"causal": False, "dropout": 0.0, "scale": 0.3}
    exact = [t.detach().float().requires_grad_() for t in some]
    ours, theirs = (
        torch.autograd.grad(look(*heads, where, where, (3, 3), **how).sum(), heads)
        for look, heads in ((short.look_along, some), (along_rows, exact))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=NEAR, atol=NEAR)


def test_a_model_that_learns_there_is_given_it() -> None:
    sizes = {"vocab": 9, "dim": 32, "heads": 2, "layers": 1, "hidden": 8}
    model = build("transformer", schema("transformer")(**sizes)).to(DEVICE)
    quicken(model)
    assert (model.nearby is short.look_along) == (DEVICE.type == "cuda" or model.along is None)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler asks for it, not we
def test_a_compiler_calls_it_as_it_is() -> None:
    real = torch.arange(9, device=DEVICE) < torch.tensor([4, 9, 0, 2], device=DEVICE)[:, None]
    rows = SteadySpans(real, 20, short.look_along)
    some = [torch.randn(1, 2, 20, 16, device=DEVICE, dtype=KIND, requires_grad=True) for _ in range(3)]

    def look(*heads: Tensor) -> Tensor:
        return rows.look(*heads, causal=True, dropout=0.0, scale=0.25)

    found = []
    for called in (look, torch.compile(look, backend="aot_eager", fullgraph=True)):
        y = called(*some)
        found.append([y, *torch.autograd.grad(y.square().sum(), some)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_translator_learns_by_it_what_it_learns_with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a batch of one of few shapes, in the precision of training there."""
    sizes = {"vocab": 20, "dim": 32, "heads": 2, "layers": 2, "hidden": 64, "dropout": 0.0}
    model = build("transformer", schema("transformer")(**sizes)).to(DEVICE)
    task = object.__new__(Rewrite)
    task.settings = RewriteTask()
    dice = random.Random(0)
    pairs = [[dice.randint(4, 19) for _ in range(dice.randint(1, 20))] for _ in range(2 * 9)]
    batch = Batch.of([[*ids, 2] for ids in pairs[::2]], [[1, *ids, 2] for ids in pairs[1::2]], range(9)).steady()
    found, called = [], []
    for some in (batch, batch.roomy()):
        model.zero_grad()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            loss = task.cost(model, some.to(DEVICE), None)
        loss.total.backward()
        found.append([loss.total.detach() / batch.count, *(p.grad for p in model.parameters() if p.grad is not None)])
        if DEVICE.type == "cpu":
            monkeypatch.setattr(spans, "fits", lambda *heads: True)
        looked = short._looked
        monkeypatch.setattr(model, "nearby", short.look_along)
        monkeypatch.setattr(short, "_looked", lambda *given, looked=looked: called.append(1) or looked(*given))
    assert len(called) == 2 * 3  # two blocks of the encoder, and two of the decoder that look both ways
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm()) <= 3 * NEAR * float(one.norm()) + NEAR
