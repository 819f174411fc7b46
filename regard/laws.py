"""Laws that every model obeys, each written once. The tests hold all systems to them, `regard doctor` a user's own run.

A law takes a case and returns how far the model is from it: the largest difference, or 0 and 1 for yes and no. A model
that is exempt from a law says why in `exempt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.cases import END, Case, Stepping, Writing
from regard.core.attention import Attention
from regard.core.mask import Mask
from regard.core.state import KV, State, join, reorder, repeat, trim
from regard.core.watch import Seen, attentions, silence, watch
from regard.decode import Hypothesis, beam, greedy
from regard.decode.search import none


@dataclass(frozen=True)
class Law:
    says: str
    check: Callable[[Any], float]
    limit: float = 1e-9  # in float64
    of: type[Case] = Case  # what it can be asked of
    room: int = 1  # tokens that are written


def laws_of(case: Case) -> dict[str, Law]:
    return {name: law for name, law in LAWS.items() if isinstance(case, law.of)}


def excused(case: Case, name: str, law: Law) -> str | None:
    """Why a law is not asked of this model."""
    why: str | None = getattr(case.model, "exempt", {}).get(name)
    if why is None and isinstance(case, Stepping) and (room := case.target.shape[1]) < law.room:
        return f"it takes {law.room} tokens, and the model's context ends at {room}"
    return why


@torch.no_grad()
def chunks(case: Stepping) -> float:
    state, pieces = case.begin(), []
    for piece in case.target.split([2, 1, case.target.shape[1] - 3], 1):
        hidden, state = case.model.states(piece, state)
        pieces.append(case.said(hidden))
    return _apart(torch.cat(pieces, 1), case.logits())


@torch.no_grad()
def padding(case: Case) -> float:
    whole = case.logits()
    ones = [case.alone(row).logits()[0] for row in range(len(whole))]
    return max(_apart(one, whole[row, : len(one)]) for row, one in enumerate(ones))


@torch.no_grad()
def order(case: Case) -> float:
    whole = case.logits()
    turned = torch.arange(len(whole)).flip(0)
    return _apart(case.rows(turned).logits(), whole[turned])


def no_look_ahead(case: Stepping) -> float:
    """By gradient: how much an output moves with a word that comes after it."""
    worst = 0.0
    with case.entering() as entered:
        logits = case.logits()
        weights = torch.linspace(
            -1, 1, logits.shape[-1], dtype=logits.dtype
        )  # log-probabilities may sum to what never moves
        for t in range(logits.shape[1] - 1):
            (grad,) = torch.autograd.grad((logits[:, t] * weights).sum(), entered[0], retain_graph=True)
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
        case.full().logits()
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
        case.full().logits()
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
def reordering(case: Stepping) -> float:
    rows = torch.arange(len(case.target)).flip(0)
    first, then = case.target[:, :3], case.target[:, 3:4]

    def begun() -> State:
        return case.model.states(first, case.begin())[1]

    def step(words: Tensor, state: State) -> Tensor:
        return case.said(case.model.states(words, state)[0])

    after = step(then, begun())
    before = step(then[rows], reorder(begun(), rows, rows))
    twice = step(then.repeat_interleave(2, 0), repeat(begun(), 2))
    return max(_apart(before, after[rows]), _apart(twice, after.repeat_interleave(2, 0)))


def joined(case: Stepping) -> float:
    """Rows that began apart, at different times, go on together; then the first leaves, and comes again as a newcomer.

    Each has one hypothesis, then two, which share the memory of their sentence.
    """
    return max(_joined(case, hypotheses) for hypotheses in (1, 2))


@torch.no_grad()
def _joined(case: Stepping, hypotheses: int) -> float:
    whole = case.logits()

    def begun(row: int, words: int) -> State:
        one = case.alone(row)
        return repeat(case.model.states(one.target[:, :words], one.begin())[1], hypotheses)

    def hear(count: int, state: State, heard: dict[int, int]) -> tuple[float, State, Seen]:
        """So many words more for rows that have heard some: how far what they answer is from what they should."""
        tokens, wanted = (
            torch.stack([t[row, words : words + count] for row, words in heard.items()]) for t in (case.target, whole)
        )
        with _watched(case.model) as seen:
            hidden, state = case.model.states(tokens.repeat_interleave(hypotheses, 0), state)
        return _apart(case.said(hidden), wanted.repeat_interleave(hypotheses, 0)), state, seen

    heard = {row: 1 + row % 3 for row in range(len(case.target))}
    worst, state, together = hear(1, join([begun(*one) for one in heard.items()]), heard)
    for row, words in heard.items():
        _, _, alone = hear(1, begun(row, words), {row: words})
        worst = max(worst, _apart_watched(alone, together, row * hypotheses))
    states = [begun(0, 2)]
    if stay := {row: words + 1 for row, words in heard.items() if row}:
        kept = torch.arange(hypotheses, hypotheses * len(heard))
        states = [trim(reorder(state, kept, torch.tensor(list(stay)))), *states]
    return max(worst, hear(2, join(states), {**stay, 0: 2})[0])


def _watched(model: nn.Module) -> AbstractContextManager[Seen]:
    """Of a model that does not look nothing is seen."""
    looks = any(isinstance(part, Attention) for part in model.modules())
    return watch(model) if looks else nullcontext({})


def _apart_watched(alone: Seen, together: Seen, row: int) -> float:
    """The weights of a row that was alone, and in a batch, where there is padding behind it that it must not see."""
    worst = 0.0
    for name, calls in alone.items():
        for one, many in zip(calls, together[name], strict=True):
            keys = one.shape[-1]
            worst = max(worst, _apart(many[row, ..., :keys], one[0]), float(many[row, ..., keys:].abs().sum()))
    return worst


def beam_of_one(case: Writing) -> float:
    plain = greedy(case.model.step, case.begin(), case.prompt, eos=END, limit=case.limit)
    beams = beam(case.model.step, case.begin(), case.prompt, eos=END, limit=case.limit, keep=1)
    return 0.0 if all(g.tokens == b[0].tokens for g, b in zip(plain, beams, strict=True)) else 1.0


def batch_of_one(case: Writing) -> float:
    """Answers of a padded batch, and of each row alone."""
    together = beam(case.model.step, case.begin(), case.prompt, eos=END, limit=case.limit, keep=3, penalty=none(0))
    worst = 0.0
    for row in range(len(case.target)):
        one = case.alone(row)
        (alone,) = beam(case.model.step, one.begin(), one.prompt, eos=END, limit=case.limit, keep=3, penalty=none(0))
        if [h.tokens for h in alone] != [h.tokens for h in together[row]]:
            return 1.0
        worst = max(worst, _apart(_scores(alone), _scores(together[row])))
    return worst


LAWS = {
    "chunks": Law("stepping in uneven chunks gives what one pass gives", chunks, of=Stepping, room=4),
    "padding": Law("padding and batch size do not change real positions", padding),
    "order": Law("the order of a batch does not change its rows", order),
    "no look-ahead": Law(
        "a later word does not change an earlier output (by gradient)", no_look_ahead, 0.0, of=Stepping, room=2
    ),
    "fused": Law("the fused kernel gives what weigh and read give", fused),
    "watching": Law("watching changes nothing, bit for bit", watching, 0.0),
    "shown is read": Law("the weights shown, times the values, are what was read", shown_is_read),
    "rows": Law("each row of weights sums to one", rows_sum_to_one),
    "silence": Law("silencing a head changes the output, and only while it lasts", silence_speaks, 0.0),
    "reorder": Law("reordering a state, then stepping, is stepping, then reordering", reordering, of=Stepping, room=4),
    "joined": Law("rows that join and leave in mid-decode give what each gives alone", joined, of=Stepping, room=6),
    "beam of one": Law("a beam of one is greedy search", beam_of_one, 0.0, of=Writing),
    "batch of one": Law("answers do not depend on the rest of the batch", batch_of_one, of=Writing),
}


@contextmanager
def _explicitly(model: nn.Module) -> Iterator[None]:
    """Every look as weigh, then read."""
    with _patched(model, lambda name, a: lambda x, kv, mask=Mask(): a.read(a.weigh(x, kv, mask), kv)):
        yield


@contextmanager
def _recorded(model: nn.Module) -> Iterator[dict[str, list[tuple[KV, Tensor]]]]:
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
def _patched(model: nn.Module, look: Callable[[str, Attention], Callable[..., Tensor]]) -> Iterator[None]:
    found = attentions(model)
    for name, attention in found.items():
        attention.look = look(name, attention)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for attention in found.values():
            for method in ("look", "read"):
                attention.__dict__.pop(method, None)


def _scores(hypotheses: list[Hypothesis]) -> Tensor:
    return torch.tensor([h.score for h in hypotheses], dtype=torch.float64)


def _apart(a: Tensor, b: Tensor) -> float:
    """What is not a number is infinitely far from everything: a model that has diverged obeys nothing."""
    return float((a - b).abs().nan_to_num(nan=torch.inf).max())
