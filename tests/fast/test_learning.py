"""What a model learns by on a CPU is what PyTorch's operators give, in any layout, length and number of threads."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest
import tiny
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.core import convolution, linear
from regard.core.block import FeedForward
from regard.core.head import Head, Mixture
from regard.core.head import spread as plain_spread
from regard.core.linear import Linear
from regard.core.mask import Mask
from regard.core.spans import Rows
from regard.core.watch import watch
from regard.fast import learning, loss, quicken, short
from regard.fast.build import library
from regard.models import build, schema
from regard.models.tcn import TCN, Config
from regard.models.transformer import Transformer
from regard.training.compiled import compile_in_place

PROCESSORS = ["plain C++", "AVX2", "AVX-512 VNNI"]  # those of AMX are the last's
pytestmark = pytest.mark.usefixtures("accelerator")


@pytest.fixture(params=PROCESSORS)
def kernels(request: pytest.FixtureRequest) -> str:
    if not library().regard_knows(request.param.encode()):
        pytest.skip(f"this processor cannot run the kernels for {request.param}")
    return str(request.param)


@pytest.fixture
def small_products_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "WORTH", 0)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is small is shared out, too."""
    monkeypatch.setattr(learning, "SHARE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


# ---- products

SIZES = [
    (1, 1, 1),
    (3, 0, 5),
    (0, 4, 5),
    (7, 9, 11),
    (16, 64, 32),
    (77, 333, 55),
    (24, 70, 48),
    (130, 500, 40),
    (40, 17, 1100),
]


def laid(rows: int, columns: int, turned: bool) -> Tensor:
    return torch.randn(columns, rows).T if turned else torch.randn(rows, columns)


@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_product_is_the_exact_one_however_its_sides_lie(m: int, k: int, n: int, kernels: str, threads: None) -> None:
    for turned, other, biased in product([False, True], repeat=3):
        a, b, bias = laid(m, k, turned), laid(k, n, other), torch.randn(n) if biased else None
        exact = a.double() @ b.double() + (0.0 if bias is None else bias.double())
        within = {"atol": 1e-6 * (k + 1), "rtol": 1e-5}
        found = learning.times(a, b, bias=bias, kernels=kernels)
        torch.testing.assert_close(found.double(), exact, **within)
        torch.testing.assert_close(learning.times(a, b, torch.full((m, n), 7.0), bias=bias, kernels=kernels), found)
        if bias is None:
            there = torch.randn(m, n)
            added = learning.times(a, b, there.clone(), add=True, kernels=kernels)
            torch.testing.assert_close(added.double(), exact + there, **within)


def test_a_result_that_is_part_of_another_leaves_the_rest_alone(kernels: str, threads: None) -> None:
    for (m, k, n), add in product([(40, 9, 33), (7, 20, 50), (1, 3, 1)], [False, True]):
        a, b, around = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n + 6)
        wanted = around.clone()
        wanted[:, 2 : n + 2] = a @ b + (around[:, 2 : n + 2] if add else 0.0)
        learning.times(a, b, around[:, 2 : n + 2], add=add, kernels=kernels)
        torch.testing.assert_close(around, wanted, atol=1e-5, rtol=1e-5)


def test_a_result_whose_numbers_lie_apart_is_made_by_pytorch() -> None:
    a, b, around = torch.randn(40, 9), torch.randn(9, 33), torch.zeros(33, 40)
    learning.times(a, b, around.T)
    torch.testing.assert_close(around.T, a @ b, atol=1e-5, rtol=1e-5)


def test_a_small_result_of_long_sums_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(learning, "_do", lambda what, *given: asked.append(what))
    a, b = torch.randn(31, 5000), torch.randn(5000, 31)
    torch.testing.assert_close(learning.times(a, b), a @ b, rtol=0, atol=0)
    assert not asked
    learning.times(a, torch.randn(5000, 32))
    assert asked == ["multiply"]


def test_sides_that_are_parts_of_others() -> None:
    """With gaps between numbers, or without any memory of their own."""
    a, b, bias = torch.randn(12, 14)[::2, ::2], torch.randn(1, 5).expand(7, 5), torch.randn(10)[::2]
    torch.testing.assert_close(learning.times(a, b, bias=bias), a @ b + bias)
    torch.testing.assert_close(learning.times(b.T, a.T, bias=torch.ones(1).expand(6)), b.T @ a.T + 1)


def test_what_does_not_fit_is_refused_as_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "WORTH", 0)
    layer = Linear(6, 9)
    quicken(layer)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.randn(4, 7))
    a, b, wrong = torch.randn(3, 4), torch.randn(4, 5), torch.randn(2, 2)
    with pytest.raises(RuntimeError):
        learning.times(a, b, wrong, add=True)
    exact, strided = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(5, 3).T
    with pytest.raises(RuntimeError):
        learning.times(a, b, exact, add=True)
    torch.testing.assert_close(learning.times(a, b, strided, add=True), a @ b)
    torch.testing.assert_close(learning.times(a, b, torch.ones(3, 5), bias=b[0], add=True), a @ b + b[0] + 1)
    torch.testing.assert_close(linear.times(a, b, torch.ones(3, 5), bias=b[0], add=True), a @ b + b[0] + 1)
    with pytest.raises(ValueError, match=r"^causal came with rows of keys that are not"):
        learning.along(*torch.randn(3, 4, 1, 8), starts([4]), starts([3]), causal=True, scale=1.0)


def test_a_product_of_ordinary_size_goes_by_it() -> None:
    layer, x = Linear(256, 512), torch.randn(128, 256)
    quicken(layer)
    y = layer(x)
    assert type(y.grad_fn.next_functions[0][0]).__name__ == "_LearntBackward"
    torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-5)


def test_what_is_elsewhere_is_multiplied_there() -> None:
    a = torch.empty(3, 4, device="meta")
    assert learning.times(a, a.T).device.type == "meta"


def test_a_product_is_the_same_in_any_number_of_threads(threads: None) -> None:
    a, b, found = torch.randn(90, 700), torch.randn(700, 50), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append([learning.times(a, b), learning.times(b.T, a.T)])
    for others in found[1:]:
        assert all(map(torch.equal, others, found[0]))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 6), (5, 7, 6), (1, 1, 6), (0, 6)])
@pytest.mark.parametrize("frozen", ["nothing", "x", "weight"])
@pytest.mark.usefixtures("small_products_are_worth_it")
def test_a_layer_that_is_quickened_is_torchs_linear_with_its_gradients(
    shape: tuple[int, ...], bias: bool, frozen: str
) -> None:
    layer, x = Linear(6, 9, bias=bias), torch.randn(shape, requires_grad=frozen != "x")
    quicken(layer)
    layer.weight.requires_grad_(frozen != "weight")
    y, exact = layer(x), x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    assert type(y.grad_fn.next_functions[0][0]).__name__ == "_LearntBackward"
    torch.testing.assert_close(y, exact.float(), atol=1e-6, rtol=1e-6)
    learners = [t for t in (x, *layer.parameters()) if t.requires_grad]
    found = torch.autograd.grad((y * y.detach().cos()).sum(), learners)
    wanted = torch.autograd.grad((exact * exact.detach().cos()).sum(), learners)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_gradients_that_are_one_number_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sum` gives a gradient that takes no memory, and neither its rows nor its columns lie side by side."""
    monkeypatch.setattr(linear, "WORTH", 0)
    layer, x = Linear(6, 9), torch.randn(4, 6)
    quicken(layer)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(9, 6))


@pytest.mark.usefixtures("small_products_are_worth_it")
def test_gradients_of_its_gradients_are_torchs() -> None:
    def penalty(quick: bool) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        layer, x = Linear(6, 9), torch.randn(4, 6, requires_grad=True)
        if quick:
            quicken(layer)
        (slope,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [x, layer.weight])

    for one, other in zip(penalty(True), penalty(False), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("how", ["nothing is learnt", "in 16 bits", "in 64 bits", "small"])
def test_what_it_is_not_for_is_torchs(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "WORTH", 2**60 if how == "small" else 0)
    kind = torch.float64 if how == "in 64 bits" else torch.float32
    layer, x = Linear(6, 9).to(kind), torch.randn(4, 6, dtype=kind)
    quicken(layer)
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "in 16 bits"):
        y = layer(x) if how != "nothing is learnt" else layer.requires_grad_(False)(x)
    assert y.dtype == (torch.bfloat16 if how == "in 16 bits" else kind)
    torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias).to(y.dtype), atol=2e-2, rtol=2e-2)
    names = {type(y.grad_fn).__name__, *(type(one).__name__ for one, _ in getattr(y.grad_fn, "next_functions", ()))}
    assert "_LearntBackward" not in names


# ---- the loss of logits


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("vocab", [1, 5, 8, 50, 1003])
def test_loss_and_gradient_of_a_row(vocab: int, shared: bool, smoothing: float, kernels: str, threads: None) -> None:
    torch.manual_seed(vocab)
    z = torch.randn(4, vocab) * 3
    z[1] *= 20  # far apart
    y, w = torch.randint(vocab, (4, 1)), torch.tensor([[1.0], [0.5], [0.0], [1.0]]) if shared else None
    wanted = plain_spread(z.double(), y, None if w is None else w.double(), vocab, smoothing)
    for one, other in zip(learning.spread(z, y, w, vocab, smoothing, kernels=kernels), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_a_word_that_is_never_said_costs_nothing(kernels: str) -> None:
    z = torch.randn(2, 40)
    z[:, 5] = -torch.inf
    y = torch.tensor([[3], [8]])
    wanted = plain_spread(z.double(), y, None, 40, 0.0)
    for one, other in zip(learning.spread(z, y, None, 40, 0.0, kernels=kernels), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_logits_and_words_that_are_parts_of_others() -> None:
    z, y = torch.randn(4, 12)[:, :10], torch.arange(8).view(4, 2)[:, :1]
    wanted = plain_spread(z.double(), y, None, 10, 0.1)
    for given in (z.clone(), z):
        for one, other in zip(learning.spread(given.clone(), y, None, 10, 0.1), wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
    for one, other in zip(learning.spread(z, y, None, 10, 0.1), wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_whoever_follows_operations_is_shown_pytorchs() -> None:
    z, y = torch.randn(4, 1000), torch.arange(4)[:, None]
    with FlopCounterMode(display=False):
        found = learning.spread(z.clone(), y, None, 1000, 0.1)
    assert all(map(torch.equal, found, plain_spread(z.clone(), y, None, 1000, 0.1)))


def test_a_row_that_is_not_finite_does_not_look_as_if_it_were(kernels: str) -> None:
    z = torch.randn(2, 40)
    z[0, 3] = torch.nan
    total, nll, dz = learning.spread(z, torch.zeros(2, 1, dtype=torch.long), None, 40, 0.0, kernels=kernels)
    assert total.isnan()
    assert nll.isnan()
    assert dz[0].isnan().any()
    assert dz[1].isfinite().all()


@pytest.mark.parametrize("word", [-1, 30])
def test_a_word_that_there_is_not_is_refused_as_ever(word: int) -> None:
    head = Head(8, 30)
    quicken(head)
    with pytest.raises((IndexError, RuntimeError), match=f"index {word} is out of bounds"):
        head(torch.randn(1, 2, 8, requires_grad=True), torch.tensor([[3, word]]))


def test_a_head_learns_by_it_what_it_learns_without() -> None:
    torch.manual_seed(0)
    plain, other = Head(8, 30, bias=True), Mixture(8, 30)
    quick = copy.deepcopy(plain)
    quicken(nn.ModuleList([quick, other]))
    assert quick.spread is learning.spread
    assert other.spread is plain_spread  # which has a loss of its own

    def learnt(head: Head) -> list[Tensor]:
        torch.manual_seed(1)
        hidden = torch.randn(3, 5, 8, requires_grad=True)
        words, real = torch.randint(30, (3, 5)), torch.rand(3, 5) < 0.7
        found = head(hidden, words, real=real, smoothing=0.1)
        found.total.backward()
        return [found.total.detach(), *(t.grad for t in (hidden, head.weight, head.bias) if t is not None)]

    for one, other in zip(learnt(quick), learnt(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# ---- attention of rows that lie end to end

SHORT, LONG = [5, 2, 0, 9, 70, 33, 1], [3, 0, 7, 17, 1, 130, 64]  # tokens of each row
ROWS = {
    "causal": (LONG, LONG), "all": (LONG, LONG), "at fewer": (LONG, SHORT), "at more": (SHORT, LONG),
    "at many": ([2, 1], [3000, 1]),
}  # fmt: skip


def starts(lengths: list[int]) -> Tensor:
    return F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()


def row_by_row(q: Tensor, k: Tensor, v: Tensor, asking: Tensor, asked: Tensor, causal: bool, scale: float) -> Tensor:
    contexts = []
    for (a, b), (c, d) in zip(pairwise(asking.tolist()), pairwise(asked.tolist()), strict=True):
        scores = torch.einsum("qhd,khd->hqk", q[a:b], k[c:d]) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        contexts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1) if d > c else scores, v[c:d]))
    return torch.cat(contexts)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("heads", "dim"), [(4, 64), (2, 16), (3, 5), (1, 40)])
def test_rows_look_at_rows_and_learn_from_it(heads: int, dim: int, rows: str, kernels: str, threads: None) -> None:
    """Some have nothing to see, some nothing to ask; queries lie among keys and values, as one product leaves them."""
    torch.manual_seed(dim)
    causal, (asking, asked) = rows == "causal", map(starts, ROWS[rows])
    together = torch.randn(int(asking[-1]), 3, heads, dim)
    q, (k, v) = together[:, 0], torch.randn(2, int(asked[-1]), heads, dim)
    given = [t.detach().requires_grad_() for t in (q, k, v)]
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    context = learning.Along.apply(*given, asking, asked, causal, dim**-0.5, kernels)
    wanted = row_by_row(*exact, asking, asked, causal, dim**-0.5)
    slope = torch.randn_like(context)
    context.backward(slope)
    wanted.backward(slope.double())
    torch.testing.assert_close(context.double(), wanted, rtol=1e-4, atol=1e-5)
    for one, other in zip(given, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-4, atol=1e-5)


def test_heads_with_gaps_between_them_and_a_gradient_without_memory() -> None:
    where = starts([3, 5])
    q, k, v = (torch.randn(8, 2, 12)[..., :6].requires_grad_() for _ in range(3))
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    found = torch.autograd.grad(learning.along(q, k, v, where, where, causal=True, scale=0.5).sum(), [q, k, v])
    wanted = torch.autograd.grad(row_by_row(*exact, where, where, True, 0.5).sum(), exact)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


# ---- a whole system

CONFIGS: dict[str, dict[str, object]] = {
    "as in the paper": {},
    "norms before": {"norm": "pre", "bias": True},
    "learned positions": {"positions": "learned", "source_positions": "own", "context": 20, "tied": "none"},
    "a norm behind the embeddings": {"embedding_norm": True, "scaled": False, "activation": "gelu"},
    "a score that is no dot product": {"score": "additive"},
    "a score that knows places": {"score": "location", "rows": 20},
    "by angle": {"score": "cosine"},
}


def batch() -> tuple[Tensor, ...]:
    torch.manual_seed(1)
    source, target, asked = torch.randint(4, 30, (5, 9)), torch.randint(4, 30, (5, 8)), torch.randint(4, 30, (5, 8))
    real = torch.arange(9) < torch.tensor([[9], [4], [1], [9], [6]])
    wanted = torch.arange(8) < torch.tensor([[2], [8], [5], [1], [8]])
    return source, real, target, asked, wanted


def learnt(model: nn.Module, smoothing: float = 0.1) -> list[Tensor]:
    source, real, target, words, asked = batch()
    model.zero_grad()
    hidden, _ = model(source, real, target, None, asked)
    model.head(hidden, words, real=asked, smoothing=smoothing).total.backward()
    return [hidden[asked], *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("small_products_are_worth_it")
def test_a_transformer_learns_without_padding_what_it_learns_with_it(config: str, kind: torch.dtype) -> None:
    sizes = {"vocab": 30, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "dropout": 0.0}
    torch.manual_seed(0)
    plain = build("transformer", schema("transformer")(**sizes, **CONFIGS[config])).train()  # type: ignore[arg-type]
    quick = copy.deepcopy(plain)
    quicken(quick)
    assert quick.along is learning.along
    within = 1e-10 if kind == torch.float64 else 2e-4
    for one, other in zip(learnt(quick.to(kind)), learnt(plain.to(kind)), strict=True):
        torch.testing.assert_close(one, other, rtol=within, atol=within / 10)


def small(**changes: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab": 30, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "dropout": 0.0}
    return build("transformer", schema("transformer")(**sizes | changes)).train()  # type: ignore[arg-type]


def test_nothing_that_is_padding_is_computed() -> None:
    """Every layer but the embeddings' gets as many vectors as there are real tokens."""
    model, seen = small(), set()
    quicken(model)
    for part in model.modules():
        if isinstance(part, Linear):
            part.register_forward_hook(lambda _, given, __: seen.add(given[0].shape[:2]))
    learnt(model)
    _, real, _, _, asked = batch()
    assert seen == {(1, int(real.sum())), (1, int(asked.sum()))}


def test_dropout_inside_attention_is_as_before() -> None:
    """The kernel has none: rows are laid side by side for it."""
    model = small(attention_dropout=0.5)
    quicken(model)
    dropped, asked = learnt(model), learnt(model.eval())
    assert not torch.allclose(dropped[0], asked[0], atol=1e-3)
    for one, other in zip(asked, learnt(small().eval()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_every_product_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values are one; the head has three, some rows at a time."""
    model, seen = small(bias=True), set()
    monkeypatch.setattr(linear, "WORTH", 0)
    monkeypatch.setattr(learning, "times", lambda a, b, *to, **how: seen.add(b.shape) or linear.times(a, b, *to, **how))
    quicken(model)
    learnt(model)
    assert {(16, 48), (16, 16), (16, 32), (32, 16), (16, 30), (30, 16)} <= seen


@pytest.mark.parametrize(("lead", "biased"), [(0, True), (3, True), (0, False)])
def test_a_convolution_learns_by_it_what_it_learns_without(
    lead: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "WORTH", 0)
    monkeypatch.setattr(convolution, "FEW", 0)
    monkeypatch.setattr(convolution, "NEAR", 0)
    x, weight, bias = torch.randn(40, 30, 2), torch.randn(48, 3, 40), torch.randn(48) if biased else None
    asked: list[torch.Size] = []

    def seen(a: Tensor, b: Tensor, *to: Tensor, **how: bool) -> Tensor:
        asked.append(b.shape)
        return learning.times(a, b, *to, **how)

    def learnt(kind: torch.dtype, **by: linear.Times) -> list[Tensor]:
        given = [None if t is None else t.to(kind).requires_grad_() for t in (x, weight, bias)]
        y = convolution.causal(*given, 4, lead, **by)
        wanted = [t for t in given if t is not None]
        return [y, *torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).to(kind).view_as(y)).sum(), wanted)]

    for one, other in zip(learnt(torch.float32, by=seen), learnt(torch.float64), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-3)
    assert len(asked) == 3 * 3  # of each tap the answer and both gradients


@pytest.mark.parametrize("concluding", [False, True])
def test_a_tcn_multiplies_by_it_where_there_is_enough_to_do(concluding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both convolutions of a level, and the matrix beside them; all steps, or those that the last one hears."""
    seen: list[torch.Size] = []
    for name, value in {"FEW": 0, "NEAR": 0}.items():
        monkeypatch.setattr(convolution, name, value)

    def shapes(worth: int) -> list[torch.Size]:
        seen.clear()
        monkeypatch.setattr(convolution, "WORTH", worth)
        model = TCN(Config(vocab=9, dim=11, embedding=10, levels=1, tied=False))
        monkeypatch.setattr(
            learning, "times", lambda a, b, *to, **how: seen.append(a.shape) or linear.times(a, b, *to, **how)
        )
        quicken(model)
        words = torch.randint(4, 9, (3, 20))
        (model.conclude(words) if concluding else model(None, None, words)[0]).sum().backward()
        return seen

    found = shapes(0)
    assert found.count((11, 10)) == 3 + 1  # of the first, and the matrix
    assert found.count((11, 11)) == 2 * 3  # of the second, there and, turned, back
    assert not shapes(2**60)


def test_what_stands_behind_a_hole_sees_what_is_in_it() -> None:
    plain, quick = small(), small()
    quicken(quick)
    source, real, target, _, asked = batch()
    asked = asked.clone()
    asked[1, 2] = False
    found = [model(source, real, target, None, asked)[0][asked] for model in (plain, quick)]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_batch_norm_averages_over_padding_as_ever() -> None:
    plain, quick = small(normalise="batch"), small(normalise="batch")
    quicken(quick)
    for one, other in zip(learnt(quick), learnt(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_who_hears_himself_has_a_rectangle_to_hear() -> None:
    plain, quick = small(), small()
    quicken(quick)
    source, real, target, _, asked = batch()
    told = torch.arange(8) % 2 == 0
    found = [model(source, real, target, told.expand(5, 8), asked)[0] for model in (plain, quick)]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


def test_a_run_on_a_cpu_learns_without_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, unpadded = [], Transformer.unpadded

    def counted(self: Transformer, source: Tensor, target: Tensor, reading: Rows, writing: Rows) -> Tensor:
        lengths.append(len(writing.at))
        return unpadded(self, source, target, reading, writing)

    monkeypatch.setattr(Transformer, "unpadded", counted)
    tiny.train(tmp_path / "run", tiny.recipe(train={"steps": 3, "save_every": 3}))
    assert len(lengths) == 3


def test_a_relu_leaves_alone_what_is_asked_and_not_learnt() -> None:
    """And what somebody keeps."""
    layer, x, kept = FeedForward(4, 8), torch.randn(5, 4), []
    layer.wide.register_forward_hook(lambda *given: kept.append(given[-1]))
    for training in (True, False):
        layer.train(training)(x)
    assert all((y < 0).any() for y in kept)
    before, layer.wide = x.clone(), nn.Identity()
    layer.narrow = nn.Identity()
    layer.train()(x)
    assert torch.equal(x, before)


def test_rows_of_another_batch_see_their_own_and_values_may_be_wider() -> None:
    reading = Rows(torch.tensor([[True, True], [True, False]]), learning.along)
    writing = Rows(torch.tensor([[True, False], [True, True]]), learning.along)
    seen = Mask(spans=reading.asked_by(writing)).dense(3, 3)
    assert seen is not None
    assert seen[0, 0].tolist() == [[True, True, False], [False, False, True], [False, False, True]]
    heads = torch.randn(2, 1, 2, 3, 4)
    assert reading.takes(*heads, heads[0], dropout=0.0)
    assert not reading.takes(*heads, torch.randn(1, 2, 3, 5), dropout=0.0)


@pytest.mark.parametrize("name", ["encoder.1.attention", "decoder.1.attention", "decoder.0.cross"])
def test_who_watches_while_it_learns_sees_rows_side_by_side(name: str) -> None:
    """What is no padding is as it would be with padding; watching changes nothing."""
    plain, quick = small(), small()
    quicken(quick)
    unwatched, found = learnt(quick), []
    for model in (plain, quick):
        with watch(model, name) as seen:
            watched = learnt(model)
        found.append(torch.cat(seen[name]))
    assert all(map(torch.equal, watched, unwatched))
    _, real, _, _, asked = batch()
    asking = real if name.startswith("encoder") else asked
    one, other = (t.transpose(1, 2)[asking] for t in found)
    torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler asks for it, not we
def test_compiled_it_has_the_shapes_that_it_is_given() -> None:
    plain, quick = small(), small()
    quicken(quick)
    torch._dynamo.reset()
    compile_in_place(quick, backend="aot_eager")
    for one, other in zip(learnt(quick), learnt(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_work_is_counted_as_without_the_accelerator() -> None:
    """Whoever counts operations sees PyTorch's."""
    plain, quick, counted = small(), small(), []
    quicken(quick)
    for model in (plain, quick):
        with FlopCounterMode(display=False) as counter:
            learnt(model)
        counted.append(counter.get_total_flops())
    assert counted[1] == counted[0] > 0


def test_where_there_is_no_accelerator_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (learning, loss, short):
        monkeypatch.setattr(kind, "suits", lambda like: False)
    model = small()
    quicken(model)
    assert model.along is None
    assert model.nearby is None
    assert model.head.spread is plain_spread
    assert all(part.times is linear.times for part in model.modules() if isinstance(part, Linear))


def test_rows_know_their_places() -> None:
    real = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    rows = Rows(real, learning.along)
    assert rows.starts.tolist() == [0, 2, 2, 4]
    assert rows.rows.tolist() == [0, 0, 2, 2]
    assert rows.places.tolist() == [[0, 1, 0, 2]]
    x = torch.randn(3, 3, 2)
    assert torch.equal(rows.unpack(rows.pack(x)), x * real[..., None])
