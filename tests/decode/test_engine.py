"""Whoever else is in the batch, and whenever they come and go: an answer is what the search gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.state import KV, ROOM, State
from regard.decode import Ask, Beam, Engine, Event, Greedy, Hypothesis, Live, Sample, beam, greedy, sample
from regard.decode.engine import APART
from regard.decode.filters import at_least, never, no_repeat, temperature, top_k
from regard.decode.search import average
from regard.errors import DataError, RegardError
from regard.models import build, schema

VOCAB, BOS, EOS = 11, 1, 2
SMALL = {"dim": 8, "dropout": 0.0}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", {"heads": 2, "layers": 1, "hidden": 16}),
    "learned positions": ("transformer", {"heads": 1, "layers": 1, "hidden": 8, "positions": "learned", "context": 12}),
    "additive": ("transformer", {"heads": 2, "layers": 1, "hidden": 8, "score": "additive", "norm": "pre"}),
    "bahdanau, local": ("seq2seq", {"embedding": 6, "window": "local-m", "reach": 1}),
    "luong, fed": ("seq2seq", {"embedding": 6, "decoder": "luong", "score": "general", "cell": "lstm"}),
    "hard": ("seq2seq", {"embedding": 6, "choice": "hard"}),
    "without attention": ("seq2seq", {"embedding": 6, "decoder": "cho"}),
    "gpt": ("gpt", {"heads": 2, "layers": 2, "hidden": 16, "context": 24}),
    "lstm": ("recurrent", {"embedding": 6, "layers": 2}),
}
every_system = pytest.mark.parametrize("system", SYSTEMS)


@cache
def model(system: str) -> Autoregressive:
    name, shape = SYSTEMS[system]
    return made(name, **shape)


def made(name: str, **shape: Any) -> Autoregressive:
    torch.manual_seed(0)
    found = build(name, schema(name)(vocab=VOCAB, **{**SMALL, **shape})).double().eval()
    for parameter in found.parameters():
        nn.init.normal_(parameter, std=0.5)
    assert isinstance(found, Autoregressive)
    return found


@torch.inference_mode()
def alone(some: Autoregressive, ask: Ask) -> list[Hypothesis]:
    """By the whole-batch functions, in a batch of one."""
    state = some.start(torch.tensor([ask.source]) if ask.source else None, rows=1)
    prompt, how = torch.tensor([ask.prompt]), ask.how
    same: dict[str, Any] = {
        "eos": ask.eos, "limit": ask.limit, "filters": ask.filters, "prefixes": [ask.prefix],
    }  # fmt: skip
    if isinstance(how, Beam):
        return beam(some.step, state, prompt, keep=how.keep, expand=how.expand, penalty=how.penalty, **same)[0]
    if isinstance(how, Sample):
        return sample(some.step, state, prompt, seeds=[how.seed], **same)
    return greedy(some.step, state, prompt, **same)


def agree(found: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    assert [(h.tokens, h.finished) for h in found] == [(h.tokens, h.finished) for h in wanted]
    assert [h.score for h in found] == pytest.approx([h.score for h in wanted], abs=1e-9)
    assert [h.logprob for h in found] == pytest.approx([h.logprob for h in wanted], abs=1e-9)


words = st.integers(3, VOCAB - 1)
ways = st.one_of(
    st.just(Greedy()),
    st.builds(Sample, st.integers(0, 99)),
    st.builds(Beam, st.sampled_from([1, 2, 3]), st.sampled_from([None, 2]), st.just(average(0.7))),
)
some_filters = st.lists(
    st.sampled_from([never(0, BOS), at_least(3, EOS), no_repeat(2), temperature(0.5), top_k(4)]),
    unique=True,
    max_size=3,
).map(tuple)


@st.composite
def asks(draw: st.DrawFn, sourced: bool) -> Ask:
    prompt = [BOS, *draw(st.lists(words, max_size=1 if sourced else 3))]
    return Ask(
        source=draw(st.lists(words, min_size=1, max_size=6)) if sourced else None,
        prompt=prompt, limit=draw(st.integers(1, 8)), eos=EOS, how=draw(ways), filters=draw(some_filters),
        prefix=draw(st.one_of(st.just([]), st.lists(words, max_size=3))),
    )  # fmt: skip


def run(engine: Engine, waiting: Sequence[tuple[int, Ask]], drops: dict[int, int]) -> dict[int, list[Event]]:
    """Requests come at their times, where there is room; some are dropped so many steps later. The events of each."""
    told: dict[int, list[Event]] = {}
    live: dict[Live, int] = {}
    since: dict[Live, int] = {}
    coming, now = sorted(enumerate(waiting), key=lambda one: one[1][0]), 0
    while coming or engine.live:
        while coming and coming[0][1][0] <= now and coming[0][1][1].how.keep <= engine.room:
            number, (_, ask) = coming.pop(0)
            one = engine.admit(ask)
            live[one], since[one], told[number] = number, now, []
        for one in engine.live:
            if now - since[one] == drops.get(live[one]):
                before = engine.room
                engine.drop(one)
                assert engine.room == before + one.ask.how.keep
        for event in engine.step():
            told[live[event.live]].append(event)
        assert sum(len(batch.tokens) for batch in engine.batches.values()) <= engine.rows
        now += 1
    return told


@every_system
@settings(max_examples=12)
@given(data=st.data())
def test_an_answer_is_what_the_search_gives_alone(system: str, data: st.DataObject) -> None:
    """Random arrivals and departures, searches, filters, prefixes and limits."""
    some = model(system)
    arrivals = data.draw(st.lists(st.tuples(st.integers(0, 6), asks(some.sourced)), min_size=1, max_size=7))
    drops = data.draw(st.dictionaries(st.integers(0, 6), st.integers(0, 4), max_size=2))
    told = run(Engine(some, rows=6), arrivals, drops)
    for number, (_, ask) in enumerate(arrivals):
        finals = [event.hypotheses for event in told[number] if event.hypotheses is not None]
        if not finals:
            assert number in drops
            continue
        (found,), wanted = finals, alone(some, ask)
        agree(found, wanted)
        assert all(event.error is None for event in told[number])
        assert sum((event.tokens for event in told[number]), ()) == wanted[0].tokens


def ask_for(*source: int, **how: Any) -> Ask:
    return Ask(**{"source": source or (4, 5), "prompt": [BOS], "limit": 6, "eos": EOS, **how})


def test_single_words_are_told_as_they_are_said_and_a_beam_at_its_end() -> None:
    endless = {"filters": (never(EOS),)}
    engine = Engine(model("transformer"))
    one, other = engine.admit(ask_for(**endless)), engine.admit(ask_for(how=Beam(2), **endless))
    steps = [engine.step() for _ in range(6)]
    assert [[len(event.tokens) for event in told if event.live is one] for told in steps] == [[1]] * 6
    assert [[len(event.tokens) for event in told if event.live is other] for told in steps] == [[]] * 5 + [[6]]
    assert engine.live == ()


def test_who_waits_together_is_read_together_where_padding_is_little() -> None:
    read: list[tuple[int, ...]] = []

    class Reads(type(model("transformer"))):  # type: ignore[misc]
        def start(self, source: Tensor | None = None, real: Tensor | None = None, *, rows: int | None = None) -> State:
            assert source is not None
            read.append(tuple(source.shape))
            return super().start(source, real, rows=rows)

    some = made("transformer", heads=2, layers=1, hidden=16)
    some.__class__ = Reads
    engine = Engine(some)
    for length in (3, 60, 5, 4, 50):
        engine.admit(ask_for(*[4] * length))
    engine.step()
    assert sorted(read) == [(2, 60), (3, 5)]


def test_newcomers_do_not_hold_up_those_who_are_being_answered_at_every_step() -> None:
    engine = Engine(model("transformer"))
    engine.admit(ask_for(filters=(never(EOS),)))
    engine.step()
    late = [engine.admit(ask_for(5, 6)), engine.admit(ask_for(7, 8))]
    for _ in range(APART - 1):
        assert not {event.live for event in engine.step()} & {*late}
    assert {*late} < {event.live for event in engine.step()}, "read together"


def test_whoever_comes_alone_is_read_at_once() -> None:
    engine = Engine(model("transformer"))
    engine.admit(ask_for(filters=(never(EOS),), limit=2 * APART))
    for _ in range(APART):
        engine.step()
    late = engine.admit(ask_for(5, 6))
    assert late in {event.live for event in engine.step()}


def test_hypotheses_share_the_memory_of_their_sentence() -> None:
    engine = Engine(model("transformer"))
    for source in ((4, 5), (6, 7, 8), (9,)):
        engine.admit(ask_for(*source, how=Beam(4), filters=(never(EOS),)))
    for _ in range(3):
        engine.step()
    (batch,) = engine.batches.values()
    assert len(batch.tokens) == 12
    assert len(batch.state.memory.keys[0].k) == len(batch.state.memory.real) == 3


def buffers(engine: Engine) -> tuple[int, int]:
    """The most places that any row has for keys of its own, and of its source."""
    found: list[list[KV]] = [[], []]
    for batch in engine.batches.values():
        found[0] += batch.state.past
        found[1] += batch.state.memory.keys
    return max(kv.k.shape[-2] for kv in found[0]), max(kv.k.shape[-2] for kv in found[1])


def test_buffers_do_not_grow_with_the_number_of_requests() -> None:
    """What a long one needed is given back once it has left, however many were there with it and came after it."""
    some = made("transformer", heads=1, layers=1, hidden=8)
    engine, done, dice = Engine(some, rows=16), 0, torch.Generator().manual_seed(0)
    engine.admit(ask_for(*[4] * 90, limit=120, filters=(never(EOS),)))
    stretched = 0
    while done < 2000:
        for length in torch.randint(1, 6, (engine.room,), generator=dice).tolist():
            engine.admit(ask_for(*[5] * length, limit=length))
        done += sum(event.hypotheses is not None for event in engine.step())
        longest = max(live.line.said + 1 for live in engine.live)
        source = max(len(live.ask.source or ()) for live in engine.live)
        if not engine.batches:
            continue
        own, memory = buffers(engine)
        stretched = max(stretched, own)
        assert own <= 2 * longest + ROOM
        assert memory <= 2 * source + ROOM
    assert stretched >= 120


def test_where_all_are_equally_long_again_the_plain_path_is_taken() -> None:
    engine = Engine(model("transformer"))
    short = engine.admit(ask_for(filters=(never(EOS),)))
    engine.step()
    engine.admit(ask_for(5, 6, 7, filters=(never(EOS),)))
    for _ in range(APART):
        engine.step()
    assert engine.batches[1].state.lengths is not None
    engine.drop(short)
    state = engine.batches[1].state
    assert state.lengths is None
    assert state.memory.real is None
    assert state.length == 1


def test_one_that_cannot_be_read_does_not_end_the_others() -> None:
    some = made("seq2seq", embedding=6, decoder="luong", score="location", positions=4, beyond="refuse")
    engine = Engine(some)
    good = [engine.admit(ask_for(4, 5, how=how)) for how in (Greedy(), Beam(3))]
    bad = engine.admit(ask_for(*[4] * 6))
    told: dict[Live, list[Event]] = {live: [] for live in (*good, bad)}
    while engine.live:
        for event in engine.step():
            told[event.live].append(event)
    (failed,) = told[bad]
    assert isinstance(failed.error, DataError)
    assert failed.hypotheses is None
    for live in good:
        hypotheses = told[live][-1].hypotheses
        assert hypotheses is not None
        agree(hypotheses, alone(some, live.ask))


def test_a_failure_in_mid_decode_ends_those_whom_it_met() -> None:
    def fails(logits: Tensor, story: Tensor) -> Tensor:
        if story.shape[1] > 1:
            raise RuntimeError("out of memory")
        return logits

    engine = Engine(model("gpt"))
    bad = engine.admit(Ask(prompt=[BOS], limit=5, eos=EOS, filters=(never(EOS), fails)))
    beamed = engine.admit(Ask(prompt=[BOS], limit=5, eos=EOS, how=Beam(2)))
    events = [event for _ in range(5) for event in engine.step()]
    assert [str(event.error) for event in events if event.live is bad and event.error] == ["out of memory"]
    (found,) = [event.hypotheses for event in events if event.live is beamed]
    assert found is not None
    agree(found, alone(model("gpt"), beamed.ask))
    assert engine.room == engine.rows


def test_dropping_twice_or_too_late_is_nothing() -> None:
    engine = Engine(model("transformer"))
    first, second = engine.admit(ask_for()), engine.admit(ask_for(7))
    engine.drop(first)
    engine.drop(first)
    while engine.live:
        last = engine.step()[-1]
    engine.drop(second)
    assert last.hypotheses is not None
    agree(last.hypotheses, alone(model("transformer"), second.ask))


def test_rows_are_bounded() -> None:
    engine = Engine(model("transformer"), rows=4)
    engine.admit(ask_for(how=Beam(3)))
    assert engine.room == 1
    with pytest.raises(RegardError, match="a request for 2 rows came, but 1 of 4 are free; wait until another is done"):
        engine.admit(ask_for(how=Beam(2)))
    engine.admit(ask_for())
    assert engine.room == 0


@pytest.mark.parametrize(
    ("system", "ask", "sentence"),
    [
        ("transformer", {"prompt": []}, "an empty prompt came, .* write the mark that begins a text"),
        ("transformer", {"limit": 0}, "limit=0 came, but an answer has a word at least; write 1 or more"),
        ("transformer", {"source": []}, "no source came, .* give its tokens as source"),
        ("gpt", {}, "a source came, but this model only writes; put its tokens at the beginning of the prompt"),
        ("gpt", {"source": None, "limit": 25}, "0 tokens to read and 25 to write came, .* positions for 24; shorten"),
        ("learned positions", {"source": [4] * 13}, "13 tokens to read and 6 to write came, .* positions for 12"),
    ],
)
def test_what_cannot_be_answered_is_refused_at_the_door(system: str, ask: dict[str, Any], sentence: str) -> None:
    engine = Engine(model(system))
    with pytest.raises(DataError, match=sentence):
        engine.admit(ask_for(**ask))
    assert engine.live == ()
