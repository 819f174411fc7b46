"""Laws that every model obeys, each written once. The tests hold all systems to them, `regard doctor` a user's own run.

A law takes a case and returns how far the model is from it: the largest difference, or 0 and 1 for yes and no. A model
that is exempt from a law says why in `exempt`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.autoregressive import Autoregressive
from regard.core.mask import Mask
from regard.core.state import KV, State, reorder, repeat
from regard.core.watch import attentions, silence, watch
from regard.decode import Hypothesis, beam, greedy
from regard.decode.search import none

BOS, EOS = 1, 2


@dataclass(frozen=True)
class Case:
    """A model in evaluation mode with a batch of uneven sources and targets."""

    model: Autoregressive
    source: Tensor  # (B, S)
    real: Tensor  # (B, S)
    target: Tensor  # (B, T)

    def logits(self) -> Tensor:
        hidden, _ = self.model(self.source, self.real, self.target)
        return self.model.head.logits(hidden)


@dataclass(frozen=True)
class Law:
    says: str
    check: Callable[[Case], float]
    limit: float = 1e-9  # in float64


def make_case(
    model: Autoregressive, vocab: int, *, source_vocab: int | None = None, rows: int = 4, length: int = 9, seed: int = 0
) -> Case:
    """Random words and uneven lengths, in float64: a law that holds there to nine digits holds."""
    dice = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(model).cpu().double().eval()
    source = torch.randint(4, source_vocab or vocab, (rows, length), generator=dice)
    lengths = torch.linspace(length, 2, rows).long()
    real = torch.arange(length) < lengths[:, None]
    target = torch.randint(4, vocab, (rows, length - 1), generator=dice)
    target[:, 0] = BOS
    return Case(model, source * real, real, target)


@torch.no_grad()
def chunks(case: Case) -> float:
    state, pieces = case.model.start(case.source, case.real, rows=len(case.target)), []
    for piece in case.target.split([2, 1, case.target.shape[1] - 3], 1):
        hidden, state = case.model.states(piece, state)
        pieces.append(case.model.head.logits(hidden))
    return _apart(torch.cat(pieces, 1), case.logits())


@torch.no_grad()
def padding(case: Case) -> float:
    whole = case.logits()
    worst = 0.0
    for row, length in enumerate(case.real.sum(1).tolist()):
        alone, _ = case.model(
            case.source[row : row + 1, :length], case.real[row : row + 1, :length], case.target[row : row + 1]
        )
        worst = max(worst, _apart(case.model.head.logits(alone)[0], whole[row]))
    return worst


@torch.no_grad()
def order(case: Case) -> float:
    turned = torch.arange(len(case.source)).flip(0)
    other, _ = case.model(case.source[turned], case.real[turned], case.target[turned])
    return _apart(case.model.head.logits(other), case.logits()[turned])


def no_look_ahead(case: Case) -> float:
    """By gradient: how much an output moves with a word that comes after it."""
    kept: list[Tensor] = []

    def keep(module: torch.nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
        if given[0].shape == case.target.shape and torch.equal(given[0], case.target):
            kept.append(result.detach().requires_grad_())
            return kept[-1]
        return result

    handle = case.model.words.register_forward_hook(keep)
    try:
        logits = case.logits()
    finally:
        handle.remove()
    weights = torch.linspace(
        -1, 1, logits.shape[-1], dtype=logits.dtype
    )  # log-probabilities may sum to what never moves
    worst = 0.0
    for t in range(logits.shape[1] - 1):
        (grad,) = torch.autograd.grad((logits[:, t] * weights).sum(), kept[0], retain_graph=True)
        worst = max(worst, _apart(grad[:, t + 1 :], torch.zeros(())))
    return worst


@torch.no_grad()
def fused(case: Case) -> float:
    with _explicitly(case.model):
        explicit = case.logits()
    return _apart(explicit, case.logits())


@torch.no_grad()
def watching(case: Case) -> float:
    """Bit for bit: 0 or 1."""
    before = case.logits()
    with watch(case.model):
        during = case.logits()
    return 0.0 if torch.equal(before, during) and torch.equal(before, case.logits()) else 1.0


@torch.no_grad()
def shown_is_read(case: Case) -> float:
    """The rows shown, times the values, through the output projection, are what the attention gave."""
    with _recorded(case.model) as record, watch(case.model) as seen:
        case.logits()
    worst = 0.0
    for name, attention in attentions(case.model).items():
        if not record[name]:
            continue  # it looked, but predicted from each key apart instead of reading
        for (kv, result), weights in zip(record[name], seen[name], strict=True):
            read = attention.output((weights @ kv.values).transpose(1, 2).flatten(2))
            worst = max(worst, _apart(read, result))
    return worst


@torch.no_grad()
def rows_sum_to_one(case: Case) -> float:
    with watch(case.model) as seen:
        case.logits()
    return max((_apart(w.sum(-1), torch.ones_like(w.sum(-1))) for calls in seen.values() for w in calls), default=0.0)


@torch.no_grad()
def silence_speaks(case: Case) -> float:
    """0 when silencing any head changes the output, and speaking again restores it."""
    before = case.logits()
    for name, attention in attentions(case.model).items():
        for head in range(attention.heads):
            with silence(case.model, name, [head]):
                if torch.equal(case.logits(), before):
                    return 1.0
    return 0.0 if torch.equal(case.logits(), before) else 1.0


@torch.no_grad()
def reordering(case: Case) -> float:
    rows = torch.arange(len(case.target)).flip(0)
    first, then = case.target[:, :3], case.target[:, 3:4]

    def begun() -> State:
        return case.model.states(first, _start(case))[1]

    after, _ = case.model.step(then, begun())
    before, _ = case.model.step(then[rows], reorder(begun(), rows, rows))
    twice, _ = case.model.step(then.repeat_interleave(2, 0), repeat(begun(), 2))
    return max(_apart(before, after[rows]), _apart(twice, after.repeat_interleave(2, 0)))


def beam_of_one(case: Case) -> float:
    plain = greedy(case.model.step, _start(case), _prompt(case), eos=EOS, limit=12)
    beams = beam(case.model.step, _start(case), _prompt(case), eos=EOS, limit=12, keep=1)
    return 0.0 if all(g.tokens == b[0].tokens for g, b in zip(plain, beams, strict=True)) else 1.0


def batch_of_one(case: Case) -> float:
    """Answers of a padded batch, and of each row alone."""
    together = beam(case.model.step, _start(case), _prompt(case), eos=EOS, limit=12, keep=3, penalty=none(0))
    worst = 0.0
    for row, length in enumerate(case.real.sum(1).tolist()):
        state = case.model.start(case.source[row : row + 1, :length], case.real[row : row + 1, :length], rows=1)
        (alone,) = beam(case.model.step, state, _prompt(case)[:1], eos=EOS, limit=12, keep=3, penalty=none(0))
        if [h.tokens for h in alone] != [h.tokens for h in together[row]]:
            return 1.0
        worst = max(worst, _apart(_scores(alone), _scores(together[row])))
    return worst


LAWS = {
    "chunks": Law("stepping in uneven chunks gives what one pass gives", chunks),
    "padding": Law("padding and batch size do not change real positions", padding),
    "order": Law("the order of a batch does not change its rows", order),
    "no look-ahead": Law("a later word does not change an earlier output (by gradient)", no_look_ahead, 0.0),
    "fused": Law("the fused kernel gives what weigh and read give", fused),
    "watching": Law("watching changes nothing, bit for bit", watching, 0.0),
    "shown is read": Law("the weights shown, times the values, are what was read", shown_is_read),
    "rows": Law("each row of weights sums to one", rows_sum_to_one),
    "silence": Law("silencing a head changes the output, and only while it lasts", silence_speaks, 0.0),
    "reorder": Law("reordering a state, then stepping, is stepping, then reordering", reordering),
    "beam of one": Law("a beam of one is greedy search", beam_of_one, 0.0),
    "batch of one": Law("answers do not depend on the rest of the batch", batch_of_one),
}


@contextmanager
def _explicitly(model: Autoregressive) -> Iterator[None]:
    """Every look as weigh, then read."""
    with _patched(model, lambda name, a: lambda x, kv, mask=Mask(): a.read(a.weigh(x, kv, mask), kv)):
        yield


@contextmanager
def _recorded(model: Autoregressive) -> Iterator[dict[str, list[tuple[KV, Tensor]]]]:
    """What every look and every read was given and gave; a look that reads is recorded once."""
    record: dict[str, list[tuple[KV, Tensor]]] = {name: [] for name in attentions(model)}

    def recorder(name: str, attention: Attention) -> Callable[..., Tensor]:
        calls = record[name]

        def look(x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
            before = len(calls)
            result = Attention.look(attention, x, kv, mask)
            if len(calls) == before:
                calls.append((kv, result))
            return result

        def read(weights: Tensor, kv: KV) -> Tensor:
            calls.append((kv, Attention.read(attention, weights, kv)))
            return calls[-1][1]

        attention.read = read  # type: ignore[method-assign]
        return look

    with _patched(model, recorder):
        yield record


@contextmanager
def _patched(model: Autoregressive, look: Callable[[str, Attention], Callable[..., Tensor]]) -> Iterator[None]:
    found = attentions(model)
    for name, attention in found.items():
        attention.look = look(name, attention)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for attention in found.values():
            for method in ("look", "read"):
                attention.__dict__.pop(method, None)


def _start(case: Case) -> State:
    return case.model.start(case.source, case.real, rows=len(case.source))


def _prompt(case: Case) -> Tensor:
    return torch.full((len(case.source), 1), BOS)


def _scores(hypotheses: list[Hypothesis]) -> Tensor:
    return torch.tensor([h.score for h in hypotheses], dtype=torch.float64)


def _apart(a: Tensor, b: Tensor) -> float:
    """What is not a number is infinitely far from everything: a model that has diverged obeys nothing."""
    return float((a - b).abs().nan_to_num(nan=torch.inf).max())
