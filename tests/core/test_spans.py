from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from along import along_rows, stand_in
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.core import spans as core_spans
from regard.core.attention import Attention
from regard.core.linear import pack
from regard.core.mask import Mask
from regard.core.score import SCORES, Dots, Place, Score
from regard.core.spans import Rows, Spans, SteadySpans

DIM, HEADS = 8, 2


@st.composite
def patterns(draw: st.DrawFn) -> Tensor:
    """(B, T): padding on the right, on the left, inside, everywhere and nowhere."""
    b, t = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    return torch.tensor(draw(st.lists(st.lists(st.booleans(), min_size=t, max_size=t), min_size=b, max_size=b)))


def uneven() -> Tensor:
    real = torch.arange(6) < torch.tensor([[2], [6], [4], [6], [0]])
    real[2] = torch.tensor([False, True, True, False, True, True])
    return real


@pytest.fixture(params=[0, 5, 2**20], ids=["by length", "in groups", "all at once"])
def spare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What padding may cost decides the groups, and must decide nothing else."""
    monkeypatch.setattr(core_spans, "SPARE", request.param)


@given(patterns())
def test_packing_keeps_what_is_real_and_unpacking_puts_it_back(real: Tensor) -> None:
    spans = Spans(real)
    x = torch.randn(*real.shape, 3)
    packed = spans.pack(x)
    assert packed.shape == (1, int(real.sum()), 3)
    assert torch.equal(spans.unpack(packed), x * real[..., None])
    assert torch.equal(spans.pack(spans.unpack(packed)), packed)


@given(patterns())
def test_rows_lie_one_behind_the_other_the_longest_first_each_in_its_order(real: Tensor) -> None:
    spans = Spans(real)
    row, column = (
        spans.pack(t.expand_as(real))[0] for t in (torch.arange(len(real))[:, None], torch.arange(real.shape[1]))
    )
    _, lengths = row.unique_consecutive(return_counts=True)
    assert lengths.tolist() == sorted((n for n in real.sum(1).tolist() if n), reverse=True)
    assert torch.equal(spans.rows, torch.arange(len(lengths)).repeat_interleave(lengths))
    assert all((column[row == r].diff() > 0).all() for r in range(len(real)))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.sampled_from([0, 50, 2000]))
def test_groups_hold_every_row_once_and_waste_little(lengths: list[int], spare: int) -> None:
    lengths = sorted(lengths, reverse=True)
    groups = list(core_spans._alike(lengths, spare))
    assert [length for group in groups for length in group] == lengths
    for group in groups:
        assert sum(group[0] ** 2 - length**2 for length in group) <= spare
    for group, after in pairwise(groups):  # one more row would have been too much
        assert sum(group[0] ** 2 - length**2 for length in [*group, after[0]]) > spare


def test_rows_of_one_length_are_views_and_need_no_mask() -> None:
    (group,) = Spans(torch.ones(3, 4, dtype=torch.bool)).groups
    x = torch.randn(12, HEADS, 5)
    assert group._spread(x).data_ptr() == x.data_ptr()
    assert group._join(group._spread(x)).data_ptr() == x.data_ptr()
    assert group._seen(causal=False) is None


@settings(max_examples=100)
@given(patterns(), st.booleans())
def test_a_mask_of_spans_is_one_of_segments(real: Tensor, causal: bool) -> None:
    spans = Spans(real)
    n = len(spans.at)
    ids = spans.pack(torch.arange(len(real))[:, None].expand_as(real))
    drawn, wanted = (m.dense(n, n) for m in (Mask(causal, spans=spans), Mask(causal, segments=ids)))
    assert drawn is not None
    assert wanted is not None
    assert torch.equal(drawn, wanted)


class Biased(Score):
    """A dot product that falls with the distance: one that comes with a table."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(DIM, DIM), torch.nn.Linear(DIM, DIM))

    def prepare(self, q: Tensor, k: Tensor, place: Place) -> Dots:
        at = torch.arange(q.shape[-2]) + place.offset
        return Dots(q, k, 0.5, -0.3 * (at[:, None] - torch.arange(k.shape[-2])).abs().to(q)[None, None])


def attention(score: str) -> Attention:
    return Attention(DIM, heads=HEADS, score=Biased() if score == "biased" else score).double()


def looked(a: Attention, x: Tensor, mask: Mask) -> tuple[Tensor, ...]:
    """What comes out, and its gradient for some direction of the packed result."""
    y = a(x, mask=mask)
    towards = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return y, *torch.autograd.grad(y, [x, *a.parameters()], towards)


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", [score for score in SCORES if score != "location"])
def test_rows_packed_are_segments_in_value_and_gradient(score: str, causal: bool) -> None:
    real = uneven()
    spans, a = Spans(real), attention(score)
    ids = spans.pack(torch.arange(len(real))[:, None].expand_as(real))
    x = spans.pack(torch.randn(*real.shape, DIM, dtype=torch.float64)).requires_grad_()
    ours = looked(a, x, Mask(causal, spans=spans))
    dense = looked(a, x, Mask(causal, segments=ids))
    for one, other in zip(ours, dense, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "location", "biased"])
def test_rows_packed_are_rows_padded(score: str, causal: bool) -> None:
    """Also where a score asks where in its row a key stands."""
    real = uneven()
    spans, a = Spans(real), attention(score)
    x = torch.randn(*real.shape, DIM, dtype=torch.float64)
    packed, padded = a(spans.pack(x), mask=Mask(causal, spans=spans)), a(x, mask=Mask(causal, keys=real))
    torch.testing.assert_close(spans.unpack(packed)[real], padded[real], rtol=0, atol=1e-12)


@pytest.mark.usefixtures("spare")
@pytest.mark.parametrize("score", ["scaled_dot", "cosine", "additive", "biased"])
@pytest.mark.parametrize("queries", [None, [0, -1]])
def test_whoever_watches_sees_the_padded_batch(score: str, queries: list[int] | None) -> None:
    real = uneven()
    spans, a = Spans(real), attention(score)
    x = torch.randn(*real.shape, DIM, dtype=torch.float64)
    with regard.watch(a, heads=[1], queries=queries) as seen:
        before = a(spans.pack(x), mask=Mask(spans=spans))
        a(x, mask=Mask(keys=real))
    packed, padded = seen[""]
    asked = real if queries is None else real[:, queries]
    torch.testing.assert_close(packed, padded * asked[:, None, :, None], rtol=0, atol=1e-12)
    assert torch.equal(a(spans.pack(x), mask=Mask(spans=spans)), before)


@pytest.mark.usefixtures("spare")
def test_watching_changes_no_bit_while_there_is_dropout() -> None:
    real = uneven()
    spans, a = Spans(real), Attention(DIM, heads=HEADS, dropout=0.4)
    x = spans.pack(torch.randn(*real.shape, DIM))
    torch.manual_seed(1)
    before = a(x, mask=Mask(spans=spans))
    torch.manual_seed(1)
    with regard.watch(a):
        assert torch.equal(a(x, mask=Mask(spans=spans)), before)
    assert not torch.equal(a(x, mask=Mask(spans=spans)), before)  # other coins
    assert not torch.equal(a.eval()(x, mask=Mask(spans=spans)), before)


@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_silent_heads_are_silent_in_packed_rows(score: str) -> None:
    real = uneven()
    spans, a = Spans(real), attention(score)
    x = torch.randn(*real.shape, DIM, dtype=torch.float64)
    loud = a(spans.pack(x), mask=Mask(spans=spans))
    with regard.silence(a, "", [0]), regard.watch(a) as seen:
        packed, padded = a(spans.pack(x), mask=Mask(spans=spans)), a(x, mask=Mask(keys=real))
    torch.testing.assert_close(spans.unpack(packed)[real], padded[real])
    assert (packed - loud).abs().max() > 1e-3
    assert (seen[""][0][:, 0] == 0).all()


def test_a_prepared_attention_looks_inward_by_rows() -> None:
    real = uneven()
    spans, a = Spans(real), Attention(DIM, heads=HEADS)
    x = spans.pack(torch.randn(*real.shape, DIM))
    wanted = a(x, mask=Mask(spans=spans))
    with torch.no_grad():
        found, _ = pack(a).inward(x, None, Mask(spans=spans))
    torch.testing.assert_close(found, wanted)


def test_a_batch_of_nothing_but_padding_is_empty() -> None:
    spans, a = Spans(torch.zeros(2, 3, dtype=torch.bool)), Attention(DIM, heads=HEADS)
    y = a(spans.pack(torch.randn(2, 3, DIM)), mask=Mask(spans=spans))
    assert y.shape == (1, 0, DIM)
    assert torch.equal(spans.unpack(y), torch.zeros(2, 3, DIM))


def test_spans_join_with_causality_alone() -> None:
    spans = Spans(uneven())
    assert (Mask(causal=True) & Mask(spans=spans)) == Mask(causal=True, spans=spans)
    assert not Mask(causal=True, spans=spans).plainly_causal(3, 3)
    assert Mask(causal=True).unpacked() == Mask(causal=True)
    sentence = (
        "spans came with a window, keys, segments, pairs or an offset, but rows that are packed join with causality"
    )
    for other in (Mask(window=2), Mask(keys=torch.ones(1, 18, dtype=torch.bool)), Mask(offset=0)):
        with pytest.raises(ValueError, match=sentence):
            Mask(spans=spans) & other
    with pytest.raises(ValueError, match="two masks with different spans cannot be joined"):
        Mask(spans=spans) & Mask(spans=Spans(uneven()))
    with pytest.raises(ValueError, match="4 rows cannot share a memory of 1 under this mask"):
        Mask(spans=spans).shared(4, 1)


# ---- spans of a size that is given


@pytest.fixture(params=[False, True], ids=["side by side", "by the kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        stand_in(monkeypatch)


@given(patterns(), st.integers(0, 30))
def test_steady_spans_keep_what_is_real_whatever_room_is_left(real: Tensor, left: int) -> None:
    count = int(real.sum())
    spans, x = SteadySpans(real, max(1, count + left)), torch.randn(*real.shape, 3)
    packed = spans.pack(x)
    assert packed.shape == (1, max(1, count + left), 3)
    assert torch.equal(packed[0, :count], x[real])
    assert torch.equal(spans.unpack(packed), x * real[..., None])
    row = torch.arange(len(real))[:, None].expand_as(real)
    assert torch.equal(spans.rows[:count], row[real])
    assert not torch.isin(spans.rows[count:], spans.rows[:count]).any()
    assert int(spans.starts[-1]) == len(spans.at)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "location", "biased"])
def test_steady_rows_packed_are_rows_padded_in_value_and_gradient(score: str, causal: bool) -> None:
    real, a = uneven(), attention(score)
    spans = SteadySpans(real, int(real.sum()) + 9)
    x = torch.randn(*real.shape, DIM, dtype=torch.float64, requires_grad=True)
    packed = spans.unpack(a(spans.pack(x), mask=Mask(causal, spans=spans)))
    padded = a(x, mask=Mask(causal, keys=real)) * real[..., None]
    towards = torch.linspace(-1, 1, padded.numel(), dtype=padded.dtype).view_as(padded)
    learners = [x, *a.parameters()]
    for one, other in zip(
        (packed, *torch.autograd.grad(packed, learners, towards)),
        (padded, *torch.autograd.grad(padded, learners, towards)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("kernel")
def test_whoever_watches_steady_rows_sees_the_padded_batch() -> None:
    real, a = uneven(), attention("scaled_dot")
    spans, x = SteadySpans(real, 25), torch.randn(*real.shape, DIM, dtype=torch.float64)
    with regard.watch(a) as seen:
        a(spans.pack(x), mask=Mask(spans=spans))
        a(x, mask=Mask(keys=real))
    packed, padded = seen[""]
    torch.testing.assert_close(packed, padded * real[:, None, :, None], rtol=0, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel for rows of any length wants a GPU")
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_for_rows_of_any_length_reads_each_row_alone(causal: bool) -> None:
    real = torch.arange(150, device="cuda") < torch.tensor([3, 150, 0, 77, 128, 1], device="cuda")[:, None]
    spans = SteadySpans(real, int(real.sum()) + 333)
    q, k, v = (torch.randn(1, 4, len(spans.at), 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    assert spans.takes(q, k, v, dropout=0.0)
    assert not spans.takes(q, k.float(), v, dropout=0.0)
    for t in (q, k, v):
        t.requires_grad_()
    how = {"causal": causal, "dropout": 0.0, "scale": 0.125}
    found = spans.look(q, k, v, **how)  # type: ignore[arg-type]
    flat = (t[0].transpose(0, 1).float() for t in (q, k, v))
    longest = (spans.longest, spans.longest)
    wanted = along_rows(*flat, spans.starts, spans.starts, longest, **how).transpose(0, 1)[None]  # type: ignore[call-arg]
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)
    ours, theirs = (torch.autograd.grad(y.float().square().sum(), (q, k, v)) for y in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=5e-2, atol=5e-2)
    dropped = spans.look(q, k, v, **{**how, "dropout": 0.5})  # type: ignore[arg-type]
    assert dropped.isfinite().all()
    assert not torch.equal(dropped, found)


def test_starts_come_with_the_segments_that_begin_there() -> None:
    with pytest.raises(ValueError, match="starts came without segments, but they say where segments begin; give both"):
        Mask(causal=True, starts=torch.tensor([0, 3]))


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("asking", "asked"), [((2, 7, 1), (3, 1, 2)), ((1, 0, 2), (5, 4, 9))])
def test_rows_of_one_batch_look_at_those_of_another(asking: tuple[int, ...], asked: tuple[int, ...]) -> None:
    """Whichever are longer, and however much room either has: what is left over has rows of its own, few or many."""
    reals = [torch.arange(max(some)) < torch.tensor(some)[:, None] for some in (asking, asked)]
    a = attention("scaled_dot")
    x, memory = (torch.randn(*real.shape, DIM, dtype=torch.float64) for real in reals)
    wanted = a(x, memory, Mask(keys=reals[1])) * reals[0][..., None]
    for more in ((0, 11), (11, 0), (30, 2)):
        writing, reading = (SteadySpans(real, int(real.sum()) + some) for real, some in zip(reals, more, strict=True))
        seen = Mask(spans=reading.asked_by(writing))
        found = a.look(writing.pack(x), a.project(reading.pack(memory)), seen)
        torch.testing.assert_close(writing.unpack(found), wanted, rtol=0, atol=1e-12)
    assert len(reading.starts) != len(writing.starts)  # and they are still what they were


def test_plain_spans_are_asked_by_nobody_else() -> None:
    spans = Spans(uneven())
    assert spans.asking is spans


def test_nobody_looks_at_rows_of_another_batch_causally() -> None:
    """Where the first query of a row stands among keys that are not its own, kernels do not agree."""
    real, x = torch.ones(2, 3, dtype=torch.bool), torch.randn(1, 2, 6, 8)
    for spans in (SteadySpans(real, 6), Rows(real, lambda q, *_, **__: q)):
        with pytest.raises(ValueError, match="causal came with rows of keys that are not the queries' own; leave it"):
            spans.asked_by(spans).look(x, x, x, causal=True, dropout=0.0, scale=1.0)
