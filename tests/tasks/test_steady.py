"""A batch in one of few shapes loses what it lost, and teaches what it taught."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from along import stand_in
from torch import Tensor, nn

from regard.config.task import ClassifyTask, MaskedTask, RewriteTask
from regard.core.spans import Begun, SteadySpans
from regard.data.batch import Batch
from regard.data.forms import more
from regard.data.readings import Batch as ReadingsBatch
from regard.data.series import Batch as SeriesBatch
from regard.data.stream import Excerpts
from regard.data.words import NONE
from regard.models import build, schema
from regard.models.transformer import Transformer
from regard.tasks import Steady
from regard.tasks.classify import Classify, Question
from regard.tasks.language import Language
from regard.tasks.masked import Masked, MaskedBatch
from regard.tasks.rewrite import Rewrite
from regard.tasks.series import KINDS, Series
from regard.tasks.span import Span, SpanBatch
from regard.tasks.tag import Tag, TagBatch

VOCAB, ROWS, LONG = 20, 37, 39  # 38 and 40, once they are steady


def words(*shape: int) -> Tensor:
    return torch.randint(4, VOCAB, shape, generator=torch.Generator().manual_seed(0))


def real() -> Tensor:
    return torch.arange(LONG) < torch.arange(LONG, LONG - ROWS, -1)[:, None]


def bare(task_class: type[Any], /, **parts: Any) -> Any:
    """A task without its data."""
    task = object.__new__(task_class)
    vars(task).update(parts)
    return task


def pairs() -> Batch:
    chance = random.Random(0)
    some = [[1, *(chance.randint(4, VOCAB - 1) for _ in range(1 + row)), 2] for row in range(ROWS)]
    return Batch.of([ids[1:] for ids in some], some[::-1], range(ROWS))


def masked() -> MaskedBatch:
    shown, at = words(ROWS, LONG), torch.arange(0, ROWS * LONG, LONG)
    zeros = torch.zeros_like(shown)
    random = torch.arange(ROWS) % 2
    return MaskedBatch(shown, real(), zeros, at, shown.flatten()[at], random, tuple(range(ROWS)), 1.5, ROWS)


def readings() -> ReadingsBatch:
    tokens, last = words(ROWS, LONG), real().sum(1) - 1
    wanted = torch.arange(ROWS) % 3
    return ReadingsBatch(tokens, real(), tokens % 2, last, wanted, tuple(range(ROWS)), int(real().sum()))


def spans() -> SpanBatch:
    places = torch.stack([torch.zeros(ROWS, dtype=torch.long), real().sum(1) - 1], 1)
    return SpanBatch(words(ROWS, LONG), real(), words(ROWS, LONG) % 2, places, tuple(range(ROWS)), int(real().sum()))


def tags() -> TagBatch:
    labels = torch.where(real() & (words(ROWS, LONG) > 9), words(ROWS, LONG) % 3, NONE)
    return TagBatch(words(ROWS, LONG), real(), labels, tuple(range(ROWS)), int((labels != NONE).sum()))


def series(kind: str) -> SeriesBatch:
    wanted = {"label": words(ROWS) % 3, "labels": words(ROWS, LONG) % 3, "keys": words(ROWS, LONG, 3).double() % 2}
    x = words(ROWS, LONG, 2).double()
    tokens = ROWS if kind == "label" else int(real().sum())
    return SeriesBatch(x, real(), wanted[kind], real(), tuple(range(ROWS)), tokens, False)


BERT = {"vocab": VOCAB, "dim": 8, "heads": 2, "layers": 1, "hidden": 16}
TCN = {"inputs": 2, "labels": 3, "dim": 6, "levels": 2}
QUESTION: Any = Question("label", 1, ("a", "b", "c"), None)  # type: ignore[arg-type]

CASES: dict[str, tuple[str, dict[str, Any], Steady, Any]] = {
    "rewrite": ("transformer", {**BERT, "layers": 2}, bare(Rewrite, settings=RewriteTask()), pairs()),
    "rewrite by hard attention": (
        "seq2seq",
        {"vocab": VOCAB, "dim": 8, "embedding": 6, "choice": "hard"},
        bare(Rewrite, settings=RewriteTask()),
        pairs(),
    ),
    "masked": ("bert", {**BERT, "head": "pretrain"}, bare(Masked, settings=MaskedTask()), masked()),
    "classify": (
        "bert",
        {**BERT, "head": "sentence", "labels": 3},
        bare(Classify, settings=ClassifyTask(), question=QUESTION),
        readings(),
    ),
    "classify and write": (
        "gpt",
        {"vocab": VOCAB, "dim": 8, "heads": 2, "layers": 1, "labels": 3, "context": LONG},
        bare(Classify, settings=ClassifyTask(auxiliary=0.5), question=QUESTION),
        readings(),
    ),
    "span": ("bert", {**BERT, "head": "words", "labels": 2}, bare(Span), spans()),
    "tag": ("bert", {**BERT, "head": "words", "labels": 3}, bare(Tag), tags()),
    **{f"series of {k}": ("tcn", TCN, bare(Series, kind=KINDS[k]), series(k)) for k in ("label", "labels", "keys")},
}


@pytest.mark.parametrize("name", CASES)
def test_what_fills_a_batch_up_counts_for_nothing(name: str) -> None:
    system, sizes, task, batch = CASES[name]
    model = build(system, schema(system)(**sizes)).double().eval()
    steady = task.in_few_shapes(model)(batch)
    shapes = [[t.shape for t in vars(some).values() if isinstance(t, Tensor)] for some in (batch, steady)]
    assert (shapes[0] == shapes[1]) == (getattr(model, "longest", None) == LONG)
    (loss, taught), (filled, retaught) = (learn(task, model, some) for some in (batch, steady))
    assert filled.count == loss.count
    torch.testing.assert_close([filled.total, *retaught], [loss.total, *taught])
    torch.testing.assert_close(filled.parts, loss.parts)


def learn(task: Steady, model: nn.Module, batch: Any) -> tuple[Any, list[Tensor]]:
    model.zero_grad()
    loss = task.loss(model, batch, None)
    loss.total.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_windows_are_steady_already() -> None:
    batch = Excerpts(words(3, 9), None, (0, 8, 16))
    assert batch.steady() is batch


def test_places_for_documents_are_a_power_of_two() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 1]])
    starts = Excerpts(words(2, 6), documents, (0, 5)).steady().starts
    assert starts is not None
    assert starts.tolist() == [0, 2, 4, 5, 6, 10, 10, 10, 10]


def test_rows_are_read_without_padding_where_there_is_a_kernel_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = masked().steady()
    assert batch.room == more(int(batch.real.sum()))
    assert batch.read is batch.real
    stand_in(monkeypatch)
    assert isinstance(batch.read, SteadySpans)
    test_what_fills_a_batch_up_counts_for_nothing("masked")


def test_a_translator_learns_without_padding_where_there_is_a_kernel_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both sides; what fills a batch up is not even read."""
    plain = build("transformer", schema("transformer")(**BERT))
    task, hearing_itself = (bare(Rewrite, settings=RewriteTask(forcing=chance)) for chance in (1, 0.5))
    assert task.in_few_shapes(plain)(pairs()).room is None
    stand_in(monkeypatch)
    assert hearing_itself.in_few_shapes(plain)(pairs()).room is None
    batch = task.in_few_shapes(plain)(pairs())
    assert batch.room == (more(int(pairs().real.sum())), more(pairs().tokens))
    assert not batch.read[ROWS:].any()
    shapes, unpadded = [], Transformer.unpadded

    def seen(self: Transformer, source: Tensor, target: Tensor, reading: Begun, writing: Begun) -> Tensor:
        shapes.append((len(reading.at), len(writing.at)))  # type: ignore[attr-defined]
        return unpadded(self, source, target, reading, writing)

    monkeypatch.setattr(Transformer, "unpadded", seen)
    for name in ("rewrite", "rewrite by hard attention"):
        test_what_fills_a_batch_up_counts_for_nothing(name)
    assert shapes == [batch.room]


@pytest.mark.parametrize(("settings", "unpads"), [({}, True), ({"score": "dot"}, True), ({"score": "additive"}, False),
                                                   ({"normalise": "batch"}, False)])  # fmt: skip
def test_padding_is_left_out_where_scores_come_down_to_dot_products(settings: dict[str, str], unpads: bool) -> None:
    """Others would want rows side by side again in each block."""
    assert build("transformer", schema("transformer")(**BERT, **settings)).unpads == unpads


def test_batch_norms_have_their_padding_also_where_there_is_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("transformer", schema("transformer")(**BERT, normalise="batch", dropout=0.0)).double()
    task, batch = bare(Rewrite, settings=RewriteTask()), pairs().steady()
    loss, taught = learn(task, model, batch)
    stand_in(monkeypatch)
    again, retaught = learn(task, model, batch)
    torch.testing.assert_close([again.total, *retaught], [loss.total, *taught])


def test_rows_of_one_length_keep_it() -> None:
    """Their last step is where all of them end."""
    even = SeriesBatch(words(4, LONG, 2), real()[:4] | True, words(4), real()[:4] | True, (1, 2, 3, 4), 4, True)
    assert even.steady() is even


def test_a_text_that_does_not_go_on_begins_anew() -> None:
    task = bare(Language)
    batch = Excerpts(words(2, 9), None, (0, 100))
    carry = task.handed_on(batch, "state")
    assert carry == {"past": "state", "at": [8, 108]}
    assert task.taken_up(Excerpts(words(2, 9), None, (8, 108)), carry) == "state"
    assert task.taken_up(batch, carry) is None
    assert task.taken_up(batch, None) is None
    assert task.handed_on(batch, None) is None


def test_scheduled_sampling_is_not_steady() -> None:
    assert bare(Rewrite, settings=RewriteTask()).steady
    assert not bare(Rewrite, settings=RewriteTask(forcing_end=0.2)).steady


def test_a_steady_task_must_say_what_a_batch_costs() -> None:
    with pytest.raises(TypeError, match="Steady must define cost"):
        Steady().loss(nn.Identity(), None, None)
