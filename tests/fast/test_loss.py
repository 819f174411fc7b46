"""The kernel of the loss against PyTorch's own operators. Without a GPU it is interpreted, slowly: make storm.
REGARD_DEVICE=cuda runs it as it is."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

DEVICE = torch.device(os.environ.get("REGARD_DEVICE", "cpu"))
pytest.importorskip("triton", reason="Triton is not installed; make storm installs it")

from regard.core import head as core  # noqa: E402
from regard.core.head import Head, Mixture  # noqa: E402
from regard.fast import learning, loss, quicken  # noqa: E402

HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
KINDS = {torch.float32: 1e-5, HALF: 1e-2}
pytestmark = [pytest.mark.storm] if DEVICE.type == "cpu" else []


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("vocab", "columns"), [(1, 1), (5, 5), (50, 64), (loss.MOST + 40, loss.MOST + 64)])
def test_loss_and_gradient_of_a_row(
    vocab: int, columns: int, shared: bool, smoothing: float, kind: torch.dtype
) -> None:
    """Columns beyond the words are never told, and get no gradient."""
    torch.manual_seed(vocab)
    z = torch.randn(4, columns, device=DEVICE).mul(3).to(kind)
    z[1] *= 20  # far apart
    z[2, : vocab // 2] = float("-inf")
    z[:, vocab:] = float("-inf")
    y = torch.tensor([[0], [vocab - 1], [vocab - 1], [vocab // 2]], device=DEVICE)
    w = torch.tensor([[1.0], [0.5], [0.0], [1.0]], device=DEVICE) if shared else None
    rows = [0, 1, 3] if smoothing else [0, 1, 2, 3]  # the mean of a row with -inf is -inf
    z, y, w = z[rows], y[rows], None if w is None else w[rows]
    total, nll, dz = core.spread(z.clone(), y, w, vocab, smoothing)
    found, plain, d = loss.spread(z.clone(), y, w, vocab, smoothing)
    within = KINDS[kind]
    torch.testing.assert_close(found, total, rtol=within, atol=within)
    torch.testing.assert_close(plain, nll, rtol=within, atol=within)
    torch.testing.assert_close(d[:, :vocab], dz[:, :vocab], rtol=within, atol=within)
    assert d[:, vocab:].eq(0).all()


@pytest.mark.parametrize("unknown", [-100, -1, 5, 7, 8, 1000])
def test_what_is_no_word_has_no_loss_and_spoils_no_other(unknown: int) -> None:
    """Of 5 words in rows of 8 columns; whoever learns from it hears that the loss is no number."""
    z = torch.randn(3, 8, device=DEVICE)
    z[:, 5:] = float("-inf")
    y = torch.tensor([[1], [unknown], [2]], device=DEVICE)
    total, nll, d = loss.spread(z.clone(), y, None, 5, 0.0)
    assert total.isnan()
    assert nll.isnan()
    others = [0, 2]
    torch.testing.assert_close(d[others], core.spread(z[others], y[others], None, 5, 0.0)[2])


def test_a_head_learns_by_it_what_it_learns_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "suits", lambda like: False)  # the accelerator, which comes first on a CPU
    torch.manual_seed(0)
    plain = Head(8, 30).to(DEVICE)
    quick = Head(8, 30).to(DEVICE)
    quick.load_state_dict(plain.state_dict())
    model = nn.ModuleList([quick, Mixture(8, 30).to(DEVICE)])
    quicken(model)
    assert quick.spread is loss.spread
    assert model[1].spread is core.spread  # which has a loss of its own
    quick.compile()
    assert quick.spread is loss.spread  # nothing better is compiled

    def learnt(head: Head) -> list[Tensor]:
        torch.manual_seed(1)
        hidden = torch.randn(3, 5, 8, device=DEVICE, requires_grad=True)
        words, real = torch.randint(30, (3, 5), device=DEVICE), torch.rand(3, 5, device=DEVICE) < 0.7
        found = head(hidden, words, real=real, smoothing=0.1)
        found.total.backward()
        assert hidden.grad is not None
        assert head.weight.grad is not None
        return [found.total.detach(), hidden.grad, head.weight.grad]

    for one, other in zip(learnt(quick), learnt(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
