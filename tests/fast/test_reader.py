"""An encoder in one call reads what its blocks read; where it cannot, they do."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.core.mask import Mask
from regard.core.spans import Spans
from regard.core.watch import watch
from regard.fast import Reader, prepare
from regard.models.bert import Bert, Config

pytestmark = pytest.mark.usefixtures("accelerator")


def made(**settings: Any) -> Bert:
    torch.manual_seed(0)
    model = Bert(Config(**{"vocab": 40, "dim": 24, "heads": 3, "layers": 2, "hidden": 50, "context": 300, **settings}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model.eval()


def batch(lengths: list[int]) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(40, (len(lengths), max(lengths)))
    return tokens, torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@torch.inference_mode()
def read(model: Bert, tokens: Tensor, real: Tensor | None) -> Tensor:
    hidden = model(tokens, real)
    return hidden if real is None else hidden[real]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
@pytest.mark.parametrize("lengths", [[1], [7], [5, 5, 5], [9, 1, 17, 4, 4, 30], [250, 3, 100, 60, 17, 90, 1, 2]])
@pytest.mark.parametrize("dim", [24, 48])
def test_it_reads_what_its_blocks_read(lengths: list[int], activation: str, dim: int) -> None:
    model = made(activation=activation, dim=dim)
    tokens, real = batch(lengths)
    plain = read(model, tokens, real)
    model.encoder.reader = reader = Reader(model.encoder, whole=False)
    quick = read(model, tokens, real)
    assert reader.latest.found is not None, "it was not asked"
    torch.testing.assert_close(quick, plain, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("whole", [False, True])
def test_a_row_is_read_the_same_whoever_is_beside_it_and_in_however_many_threads(whole: bool) -> None:
    model = made()
    model.encoder.reader = Reader(model.encoder, whole=whole)
    tokens, real = batch([250, 30, 7, 200, 100, 7])
    together = read(model, tokens, real)
    alone = torch.cat(
        [read(model, row[None, : int(seen.sum())], None)[0] for row, seen in zip(tokens, real, strict=True)]
    )
    assert torch.equal(alone, together)
    torch.set_num_threads(3)
    try:
        assert torch.equal(read(model, tokens, real), together)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("lengths", [[300], [5, 170], [40]])
def test_several_threads_read_one_text_together(lengths: list[int], whole: bool) -> None:
    model = made(dim=96, hidden=384)
    model.encoder.reader = Reader(model.encoder, whole=whole)
    tokens, real = batch(lengths)
    alone = read(model, tokens, real)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        try:
            assert torch.equal(read(model, tokens, real), alone)
        finally:
            torch.set_num_threads(1)


def test_in_int8_it_is_off_by_little() -> None:
    tokens, real = batch([20, 10, 5])
    model = made(dim=96, hidden=200)
    right = read(model, tokens, real)
    off = read(prepare(model, "int8"), tokens, real) - right
    assert 0 < float(off.std() / right.std()) < 0.1


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
@pytest.mark.parametrize("part", ["feed_forward.wide", "feed_forward.narrow", "attention.value", "attention.score.key"])
def test_a_weight_that_is_no_number_is_not_hidden(part: str, activation: str, whole: bool) -> None:
    model = made(activation=activation)
    with torch.no_grad():
        model.encoder[0].get_submodule(part).weight[3, 5] = float("nan")
    model.encoder.reader = reader = Reader(model.encoder, whole=whole)
    assert read(model, *batch([5, 3])).isnan().all()
    assert reader.latest.found is not None, "it was not asked"


def test_it_steps_aside_while_somebody_watches_trains_or_has_changed_it() -> None:
    model, (tokens, real) = made(), batch([5, 3])
    model.encoder.reader = reader = Reader(model.encoder, whole=False)
    with watch(model) as seen:
        read(model, tokens, real)
    assert seen["encoder.1.attention"]
    assert reader.latest.found is None
    model(tokens, real).sum().backward()
    assert model.words.weight.grad is not None
    with torch.no_grad():
        model.encoder[0].attention.value.weight.add_(1.0)
    again = read(model, tokens, real)
    model.encoder.reader = None
    torch.testing.assert_close(again, read(model, tokens, real), atol=2e-5, rtol=1e-4)


@torch.inference_mode()
def test_it_steps_aside_where_not_everybody_sees_the_whole_row() -> None:
    model, (_, real) = made(), batch([5, 3])
    reader, spans = Reader(model.encoder, whole=False), Spans(real)
    x = spans.pack(torch.randn(2, 5, 24))
    assert reader(x, Mask(spans=spans)) is not None
    for mask in (Mask(causal=True), Mask(causal=True, spans=spans), Mask(window=2), Mask(keys=real)):
        assert reader(x, mask) is None


@pytest.mark.parametrize("whole", [False, True])
def test_a_copy_has_a_reader_of_its_own(whole: bool) -> None:
    model, (tokens, real) = made(), batch([5, 3])
    model.encoder.reader = Reader(model.encoder, whole=whole)
    before = read(model, tokens, real)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(read(twin, tokens, real), before)
        assert twin.encoder.reader.latest.found is not None
        with torch.no_grad():
            twin.encoder[0].attention.value.weight.add_(1.0)
        assert not torch.equal(read(twin, tokens, real), before)
    assert torch.equal(read(model, tokens, real), before)
