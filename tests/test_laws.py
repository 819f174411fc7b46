"""Laws, each written once, over every registered system; and for each law a system that breaks it: it can fail."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.cases import END, Case, Encoding, Listening, Writing, make_case
from regard.config import write_toml
from regard.core.attention import Attention
from regard.core.autoregressive import Autoregressive
from regard.core.head import Loss
from regard.core.mask import Mask
from regard.core.probe import Probe
from regard.core.score import Dots, Place, ScaledDot
from regard.core.state import KV, State
from regard.core.watch import attentions
from regard.decode import beam
from regard.laws import LAWS, excused, laws_of
from regard.models import MODELS, build, schema
from regard.models.transformer import Side, Transformer

VOCAB = 13
NUMBERS = {"vocab": None, "inputs": 3, "labels": 4}  # it reads numbers instead of tokens
# Every system in every shape that might matter. A system that is not in this table does not ship.
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "post": {},
        "pre": {"norm": "pre"},
        "tied target": {"tied": "target"},
        "two vocabularies": {"tied": "target", "source_vocab": 17, "norm": "pre"},
        "untied": {"tied": "none", "source_vocab": 17, "decoder_layers": 1},
        "learned": {"positions": "learned", "context": 16},
        "one head": {"heads": 1, "layers": 1},
        "odd": {"dim": 15, "heads": 3},
        "bias": {"bias": True, "activation": "gelu", "head_bias": True},
        "halves": {"positions": "halves", "scaled": False, "activation": "silu", "tied": "words"},
        "positions of each side": {
            "positions": "learned", "source_positions": "own", "context": 16, "offset": 2, "embedding_norm": True,
        },
        **{score: {"score": score} for score in ("dot", "general", "additive", "concat", "mlp", "cosine", "location")},
    },
    "seq2seq": {
        "bahdanau": {},
        "sutskever": {"decoder": "sutskever"},
        "as Sutskever trained it": {
            "decoder": "sutskever", "cell": "lstm", "layers": 2, "bidirectional": False, "reverse": True,
        },
        "cho": {"decoder": "cho"},
        "two lstm layers": {"cell": "lstm", "layers": 2},
        "plain rnn, mean context": {"cell": "rnn", "context": "mean"},
        "tied": {"tied": "all"},
        "two vocabularies": {"tied": "target", "source_vocab": 17, "reverse": True},
        "heads": {"heads": 2, "values": "projected"},
        "dot": {"decoder": "luong", "score": "dot", "merge": "sum", "feeding": False},
        "scaled dot": {"decoder": "luong", "score": "scaled_dot", "heads": 2},
        "general": {"decoder": "luong", "score": "general"},
        "concat": {"decoder": "luong", "score": "concat"},
        "mlp": {"decoder": "luong", "score": "mlp", "heads": 2},
        "cosine": {"decoder": "luong", "score": "cosine"},
        "location": {"decoder": "luong", "score": "location", "positions": 6},
        "scaled dot, literal": {"decoder": "luong", "score": "scaled_dot_literal", "merge": "sum"},
        "concat, literal": {"decoder": "luong", "score": "concat_literal"},
        "cosine, literal": {"decoder": "luong", "score": "cosine_literal"},
        "local-m": {"window": "local-m", "reach": 2},
        "local-m at once": {"decoder": "luong", "feeding": False, "window": "local-m", "reach": 2},
        "local-p": {"decoder": "luong", "score": "general", "window": "local-p", "reach": 2},
        "hard": {"choice": "hard"},
        "marginal": {"decoder": "luong", "choice": "marginal", "feeding": False, "score": "general"},
    },
    "bert": {
        "pretrain": {"head": "pretrain"},
        "sentence": {"head": "sentence", "labels": 3},
        "words": {"head": "words", "labels": 3},
        "none": {"activation": "gelu_tanh", "dim": 15, "heads": 3},
        "masked": {"head": "masked", "tied": False, "segments": 0, "offset": 2},
        "relu pooler": {"head": "sentence", "labels": 3, "pooler": "relu", "activation": "silu"},
    },
    "gpt": {
        "pre": {},
        "post": {"norm": "post"},
        "without bias": {"bias": False, "heads": 4},
        "labels": {"labels": 3},
        "untied": {"tied": False},
        "numbers": NUMBERS,
    },
    "recurrent": {
        "lstm": {},
        "gru, two layers": {"cell": "gru", "layers": 2, "tied": False},
        "rnn": {"cell": "rnn", "labels": 3},
        "numbers": NUMBERS,
        "numbers, gru": {**NUMBERS, "cell": "gru"},
    },
    "tcn": {
        "tied": {},
        "untied, labels": {"tied": False, "labels": 3},
        "one level, of channels": {"levels": 1, "kernel": 4, "dropout_of": "channel"},
        "three levels": {"levels": 3, "embedding": 16},
        "numbers": NUMBERS,
    },
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "context": 16},
    "gpt": {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "context": 16},
    "recurrent": {"vocab": VOCAB, "dim": 16, "embedding": 12, "layers": 1},
    "transformer": {"vocab": VOCAB, "dim": 16, "heads": 2, "layers": 2, "hidden": 32, "dropout": 0.1},
    "seq2seq": {"vocab": VOCAB, "dim": 16, "embedding": 12, "dropout": 0.1},
    "tcn": {"vocab": VOCAB, "dim": 16, "embedding": 12, "levels": 2, "kernel": 2},
}
# Parameters that have no gradient, and why.
EXEMPT = {"score.key.bias": "adds the same to all scores of a query, and a softmax does not see that"}
UNMOVED = {"hard": ("cross.score", "a choice has no gradient; in training REINFORCE gives one")}

every_shape = pytest.mark.parametrize(
    ("system", "shape"), [(system, shape) for system in SHAPES for shape in SHAPES[system]]
)


def make(system: str, shape: str) -> nn.Module:
    torch.manual_seed(0)
    return build(system, schema(system)(**{**SMALL[system], **SHAPES[system][shape]}))


def randomised(model: nn.Module) -> nn.Module:
    """Fresh biases are zero and fresh gains one: mistakes in them would not show."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def case_of(system: str, shape: str, model: nn.Module) -> Case:
    return make_case(model, VOCAB, source_vocab=SHAPES[system][shape].get("source_vocab"))


@cache
def case(system: str, shape: str) -> Case:
    return case_of(system, shape, randomised(make(system, shape)))


def loss_of(some: Case, smoothing: float = 0.0) -> Loss:
    if isinstance(some, Encoding):
        return encoding_loss(some)
    if isinstance(some, Listening):
        told = some.logits()
        return Loss(labelling(told), told.shape[0] * told.shape[1])
    assert isinstance(some, Writing)
    hidden, _ = some.model(some.source, some.real, some.target[:, :-1])
    wanted = some.target[:, 1:]
    loss: Loss = some.model.head(hidden, wanted, real=wanted > 0, smoothing=smoothing)
    if getattr(some.model, "labels", None) is not None:
        last = torch.full((len(wanted),), wanted.shape[1] - 1)
        loss.total = loss.total + labelling(some.model.labels(some.model.summary(hidden, last)))
    return loss


def encoding_loss(some: Encoding) -> Loss:
    """Whatever an encoder has on top is asked for something that all rows and tokens have a part in."""
    model: Any = some.model
    hidden = model(some.tokens, some.real)
    at = hidden[some.real]
    match model.config.head:
        case "pretrain":
            loss: Loss = model.masked(at, some.tokens[some.real])
            return Loss(loss.total + labelling(model.next(model.summary(hidden))), loss.count)
        case "masked":
            return model.masked(at, some.tokens[some.real])  # type: ignore[no-any-return]
        case "sentence":
            return Loss(labelling(model.labels(model.summary(hidden))), len(hidden))
        case "words":
            return Loss(labelling(model.labels(at)), len(at))
        case _:
            return Loss(at.square().sum() + model.summary(hidden).square().sum(), len(at))


def labelling(logits: Tensor) -> Tensor:
    """Of the label 1, summed."""
    return -logits.log_softmax(-1)[..., 1].sum()


def gradients(loss: Tensor, model: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)


def test_a_system_registers_or_does_not_ship() -> None:
    import regard.models

    files = {path.stem for path in Path(regard.models.__file__).parent.glob("*.py")} - {"__init__"}
    assert {home.rpartition(".")[2] for home, _ in MODELS.values()} == files
    assert set(SHAPES) == set(SMALL) == set(MODELS)
    assert all(SHAPES.values())


@every_shape
@pytest.mark.parametrize("law", LAWS)
def test_law(system: str, shape: str, law: str) -> None:
    some = case(system, shape)
    if law not in laws_of(some):
        pytest.skip("what does not write has nothing to do with writing")
    if why := getattr(some.model, "exempt", {}).get(law):
        pytest.skip(why)
    assert LAWS[law].check(some) <= LAWS[law].limit, LAWS[law].says


@pytest.mark.parametrize("system", SHAPES)
@settings(max_examples=15)
@given(rows=st.integers(1, 5), length=st.integers(5, 12), seed=st.integers(0, 1000))
def test_laws_hold_at_every_length(system: str, rows: int, length: int, seed: int) -> None:
    model = case(system, next(iter(SHAPES[system]))).model
    some = make_case(model, VOCAB, rows=rows, length=length, seed=seed)
    for law in {"chunks", "padding", "reorder"} & set(laws_of(some)):
        assert LAWS[law].check(some) <= LAWS[law].limit, LAWS[law].says


@pytest.mark.parametrize("context", [1, 2, 3, 4, 5, 6, 11])
@pytest.mark.parametrize(("system", "more"), [("gpt", {}), ("bert", {}), ("transformer", {"positions": "learned"})])
def test_laws_fit_into_every_context(system: str, more: dict[str, Any], context: int) -> None:
    config = schema(system)(**{**SMALL[system], **more, "context": context})
    some, asked = make_case(randomised(build(system, config)), VOCAB), 0
    for name, law in laws_of(some).items():
        if (why := excused(some, name, law)) is None:
            asked += 1
            assert law.check(some) <= law.limit, law.says
        else:
            assert why == f"it takes {law.room} tokens, and the model's context ends at {context}"
    assert asked == len(laws_of(some)) or context < 6
    assert asked >= 7


@every_shape
def test_every_parameter_gets_a_gradient(system: str, shape: str) -> None:
    some = case(system, shape)
    loss_of(some, 0.1).total.backward()
    for name, parameter in some.model.named_parameters():
        if not name.endswith(tuple(EXEMPT)) and UNMOVED.get(shape, ("nothing",))[0] not in name:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 1e-9, name
    some.model.zero_grad()


@every_shape
def test_one_batch_can_be_learnt(system: str, shape: str) -> None:
    model = make(system, shape).eval()  # without dropout: it is to be learnt by heart
    some = replace(case(system, shape), model=model)
    if isinstance(some, Listening):
        some = replace(some, target=some.target.float())
    optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
    losses: list[float] = []
    while not losses or losses[-1] - unknowable(some) > 0.05 * losses[0]:
        assert len(losses) < 100
        loss = loss_of(some)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
        losses.append(loss.total.item())


def unknowable(some: Case) -> float:
    """Without a source all rows begin alike, and which of them it is can only be guessed."""
    if not isinstance(some, Writing) or some.model.sourced:
        return 0.0
    alike = Counter(some.target[:, 1].tolist()).values()
    return sum(count * math.log(len(some.target) / count) for count in alike)


@every_shape
def test_settings_survive_toml(system: str, shape: str) -> None:
    config = schema(system)(**{**SMALL[system], **SHAPES[system][shape]})
    assert schema(system)(**tomllib.loads(write_toml(config))) == config


@every_shape
def test_what_is_saved_is_what_is_loaded(system: str, shape: str, tmp_path: Path) -> None:
    from regard.weights import read_weights, save_weights

    some, other = case(system, shape), make(system, shape).double().eval()
    save_weights(tmp_path / "model.safetensors", some.model)
    read_weights(tmp_path / "model.safetensors", other)
    with torch.no_grad():
        assert torch.equal(some.logits(), replace(some, model=other).logits())


@every_shape
def test_four_eighths_are_one_batch_of_32(system: str, shape: str) -> None:
    """Sums and counts: unlike the mean of means, they do not care how the words are spread."""
    model = case(system, shape).model
    whole = make_case(model, VOCAB, source_vocab=SHAPES[system][shape].get("source_vocab"), rows=32)
    if isinstance(whole, Writing):
        uneven = torch.arange(8) < torch.linspace(8, 2, 32).long()[:, None]
        whole = replace(whole, target=whole.target * uneven)
    loss = loss_of(whole, 0.1)
    wanted = gradients(loss.total / loss.count, model)
    pieces = [loss_of(whole.rows(some), 0.1) for some in torch.arange(32).split(8)]
    count = sum(piece.count for piece in pieces)
    assert count == loss.count
    alike = shape in ("sentence", "relu pooler") or isinstance(whole, Listening)  # a label a row, or rows of one length
    assert len({piece.count for piece in pieces}) == 4 or alike
    found = [gradients(piece.total / count, model) for piece in pieces]
    for whole_one, parts in zip(wanted, zip(*found, strict=True), strict=True):
        torch.testing.assert_close(torch.stack(parts).sum(0), whole_one, rtol=0, atol=1e-12)


@every_shape
@torch.inference_mode()
def test_in_single_precision_answers_agree_unless_they_tie(system: str, shape: str) -> None:
    some = case(system, shape)
    if not isinstance(some, Writing):
        pytest.skip("what does not write gives no answers")
    model = randomised(make(system, shape)).eval()
    assert isinstance(model, Autoregressive)
    some = replace(some, model=model)
    together = beam(model.step, some.begin(), some.prompt, eos=END, limit=10, keep=3)
    for row in range(len(some.target)):
        one = some.alone(row)
        (alone,) = beam(model.step, one.begin(), one.prompt, eos=END, limit=10, keep=3)
        assert alone[0].tokens == together[row][0].tokens or abs(alone[0].score - together[row][0].score) < 1e-4


@every_shape
@torch.inference_mode()
def test_a_beam_says_of_its_answers_what_the_model_says(system: str, shape: str) -> None:
    some = case(system, shape)
    if not isinstance(some, Writing):
        pytest.skip("what does not write gives no answers")
    answers = beam(some.model.step, some.begin(), some.prompt, eos=END, limit=5, keep=3)
    for row, (best, *_) in enumerate(answers):
        said = torch.tensor([[*some.prompt[row].tolist(), *best.tokens, *([END] if best.finished else [])]])
        one = replace(some.alone(row), target=said[:, :-1])
        logprobs = one.logits().log_softmax(-1).gather(2, said[:, 1:, None])
        assert float(logprobs.sum()) == pytest.approx(best.logprob, abs=1e-6)


# ------------------------------------------------------------------ systems that break a law


class SeesFromTheTop(Attention):
    """Draws the causal triangle from the first key, as a fused kernel does by itself."""

    def look(self, x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
        return super().look(x, kv, replace(mask, offset=0) if mask.causal else mask)


class SeesPadding(Attention):
    def look(self, x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
        return super().look(x, kv, replace(mask, keys=None))


class SeesTheNext(Attention):
    """A causal mask that is off by one."""

    def _look(self, q: Tensor, kv: KV, mask: Mask) -> Tensor:
        return super()._look(q, kv, replace(mask, offset=kv.length - q.shape[2] + 1) if mask.causal else mask)


class TwiceAsSharp(ScaledDot):
    """Explicitly one scale, fused another."""

    def forward(self, q: Tensor, k: Tensor, place: Place) -> Tensor:
        return 2 * super().forward(q, k, place)


class Shy(Attention):
    """Looks elsewhere when watched, by very little."""

    def look(self, x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
        return super().look(x, kv, mask) * (1 + 1e-15 * len(self.probes))


class Boasts(Attention):
    """Shows sharper weights than it used."""

    def _show(self, probe: Probe, dots: Dots, mask: Mask, batch: int) -> None:
        super()._show(probe, dots._replace(scale=2 * dots.scale), mask, batch)


class ShowsTooMuch(Attention):
    def _show(self, probe: Probe, dots: Dots, mask: Mask, batch: int) -> None:
        super()._show(probe, dots, mask, batch)
        probe.seen[-1] = probe.seen[-1] * 1.01


class CannotBeSilenced(Attention):
    def look(self, x: Tensor, kv: KV, mask: Mask = Mask()) -> Tensor:
        gain, self.gain = self.gain, None
        context = super().look(x, kv, mask)
        self.gain = gain
        return context


class ForgetsWhereItStands(Transformer):
    def _embed(self, tokens: Tensor, side: Side, start: int, own: Tensor | None = None) -> Tensor:
        return super()._embed(tokens, side, 0)


class CountsFromTheLongest(Transformer):
    """Gives every row of a batch the position of the one that has read most."""

    def _embed(self, tokens: Tensor, side: Side, start: int, own: Tensor | None = None) -> Tensor:
        return super()._embed(tokens, side, start)


class WritesAtTheEnd(Transformer):
    """Lays the keys of every row behind those of the longest, as if all had begun together."""

    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return super().states(tokens, replace(state, lengths=None))


class CountsRows(Transformer):
    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = super().states(tokens, state)
        return hidden + torch.arange(len(hidden))[:, None, None], state


class Box:
    """Something that a state may not contain: `reorder` does not know what is in it."""

    def __init__(self, content: Tensor) -> None:
        self.content = content


class CarriesABox(Transformer):
    def states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        box = state.notes.get("box")
        hidden, state = super().states(tokens, state)
        if isinstance(box, Box):
            hidden = hidden + box.content.repeat(len(hidden) // len(box.content))[:, None, None]
        return hidden, replace(state, notes={"box": Box(tokens[:, -1].double())})  # type: ignore[dict-item]


class HasMoods(Transformer):
    """Keeps something to itself between calls."""

    mood = 0

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.mood += 1
        logits, state = super().step(tokens, state)
        return logits + 5 * torch.sin(self.mood * torch.arange(VOCAB)), state


class AsksItsNeighbours(Transformer):
    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = super().step(tokens, state)
        return logits + logits.mean(0), state


def of_class(broken: type) -> Callable[[Autoregressive], None]:
    """Makes the model, all of its attentions or all of their scores of that class."""

    def apply(model: Autoregressive) -> None:
        if issubclass(broken, Transformer):
            model.__class__ = broken
        for attention in attentions(model).values():
            if issubclass(broken, Attention):
                attention.__class__ = broken
            if issubclass(broken, ScaledDot):
                attention.score.__class__ = broken

    return apply


BROKEN: dict[str, list[type]] = {
    "chunks": [SeesFromTheTop, ForgetsWhereItStands],
    "padding": [SeesPadding],
    "order": [CountsRows],
    "no look-ahead": [SeesTheNext],
    "fused": [TwiceAsSharp, SeesPadding],
    "watching": [Shy],
    "shown is read": [Boasts, ShowsTooMuch],
    "rows": [ShowsTooMuch],
    "silence": [CannotBeSilenced],
    "reorder": [CarriesABox],
    "joined": [CountsFromTheLongest, WritesAtTheEnd, SeesPadding],
    "beam of one": [HasMoods],
    "batch of one": [AsksItsNeighbours, SeesPadding],
}


def test_for_every_law_there_is_a_system_that_breaks_it() -> None:
    assert set(BROKEN) == set(LAWS)


@pytest.mark.parametrize(("law", "broken"), [(law, broken) for law in BROKEN for broken in BROKEN[law]])
def test_a_broken_system_fails(law: str, broken: type) -> None:
    model = randomised(make("transformer", "post"))
    assert LAWS[law].check(case_of("transformer", "post", model)) <= LAWS[law].limit
    of_class(broken)(model)
    assert LAWS[law].check(case_of("transformer", "post", model)) > LAWS[law].limit


@pytest.mark.parametrize(
    "law", [law for law in LAWS if law != "beam of one"]
)  # whose tokens are numbers whatever happens
def test_a_system_that_has_diverged_fails(law: str) -> None:
    model = randomised(make("transformer", "post"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    assert LAWS[law].check(case_of("transformer", "post", model)) > LAWS[law].limit
