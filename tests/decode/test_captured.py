"""The search that goes ahead by itself finds what the plain one finds. Without a GPU a step is repeated, not captured;
everything else is the same. REGARD_DEVICE=cuda captures."""

from __future__ import annotations

import copy
import os
import pickle
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from regard.core.autoregressive import Autoregressive
from regard.core.changes import Likeness, parts_of
from regard.core.linear import pack
from regard.core.state import State, reorder, repeat
from regard.core.watch import silence, watch
from regard.decode import Coverage, Hypothesis, beam, greedy, sample
from regard.decode.captured import Captured, capture, captured
from regard.decode.chances import best_of_groups
from regard.decode.desk import Desk
from regard.decode.filters import Filter, at_least, min_p, never, no_repeat, temperature, top_k, top_p
from regard.decode.prompt import Act, Places, Prompt, Replay, Source, roomy
from regard.decode.search import average, none, wu
from regard.decode.standing import Standing, tensors
from regard.errors import ConfigError
from regard.fast import narrow
from regard.models import gpt, recurrent, seq2seq, tcn, transformer

DEVICE = torch.device(os.environ.get("REGARD_DEVICE", "cpu"))
if DEVICE.type == "cuda":
    torch.backends.cudnn.allow_tf32 = False  # else its recurrent layers round otherwise than all the rest
BOS, EOS, VOCAB = 1, 2, 11
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt": (gpt.GPT, gpt.Config, {"dim": 16, "heads": 2, "layers": 2, "context": 40}),
    "transformer": (transformer.Transformer, transformer.Config, {"dim": 16, "heads": 2, "layers": 2, "hidden": 32}),
    "additive transformer": (
        transformer.Transformer, transformer.Config,
        {"dim": 16, "heads": 2, "layers": 1, "hidden": 32, "score": "additive", "positions": "learned", "context": 40},
    ),
    "recurrent language model": (recurrent.LanguageModel, recurrent.Config, {"dim": 16, "embedding": 8}),
    **{
        " ".join(["seq2seq", *map(str, settings.values())]): (
            seq2seq.Seq2Seq, seq2seq.Config, {"dim": 16, "embedding": 8, **settings},
        )
        for settings in (
            {"decoder": "sutskever"},
            {"decoder": "cho", "cell": "lstm"},
            {"decoder": "bahdanau"},
            {"decoder": "bahdanau", "choice": "hard", "window": "local-m", "reach": 2},
            {"decoder": "luong", "layers": 2},
            {"decoder": "luong", "window": "local-p", "reach": 3, "context": "mean"},
            {"decoder": "luong", "feeding": False, "choice": "marginal"},
            {"decoder": "luong", "score": "location", "positions": 8},
        )
    },
}  # fmt: skip
FILTERS: list[tuple[Filter, ...]] = [(), (at_least(3, EOS),), (no_repeat(2), never(0, 1)), (at_least(99, EOS),)]
SHAPES: list[tuple[Filter, ...]] = [(), (temperature(0.7), top_k(5)), (top_p(0.9), min_p(0.05))]
each_family = pytest.mark.parametrize("family", FAMILIES)


def repeated(act: Act, pool: Any) -> Replay:
    """What stands for a captured graph where there is no GPU."""
    return act


RECORD = captured if DEVICE.type == "cuda" else repeated


def make(family: str, kind: torch.dtype = torch.float64, **settings: Any) -> Autoregressive:
    """Matrices larger than at birth, so that a word hangs on all those before it, and some answers end."""
    build, config, usual = FAMILIES[family]
    model: Autoregressive = build(config(**{"vocab": VOCAB, **usual, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return pack(model.to(DEVICE, kind).eval())


def beginning(model: Autoregressive, dice: random.Random, rows: int) -> tuple[Callable[[], State], Tensor]:
    """A fresh state as often as it is asked for, and a prompt."""
    if not model.sourced:
        prompt = torch.randint(3, VOCAB, (rows, dice.randint(1, 5)), device=DEVICE)
        return lambda: model.start(rows=rows), prompt
    longest = dice.randint(2, 20)
    lengths = torch.tensor([longest, *(dice.randint(1, longest) for _ in range(rows - 1))])
    source = torch.randint(3, VOCAB, (rows, longest), device=DEVICE)
    real = None if dice.random() < 0.3 else (torch.arange(longest) < lengths[:, None]).to(DEVICE)

    @torch.inference_mode()
    def start() -> State:
        return model.start(source, real)

    return start, torch.full((rows, 1), BOS, device=DEVICE)


def searches(dice: random.Random, rows: int) -> list[tuple[Callable[..., Any], dict[str, Any]]]:
    bent = dice.choice(FILTERS)
    seeds = [dice.randint(0, 99) for _ in range(rows)]
    wide = {"keep": dice.choice([1, 2, 4]), "expand": dice.choice([None, 1, 3])}
    return [
        (greedy, {"filters": bent}),
        (sample, {"filters": (*bent, *dice.choice(SHAPES)), "seeds": seeds}),
        (beam, {"filters": bent, **wide}),
    ]


def agree(found: Sequence[Any], wanted: Sequence[Any], within: float = 1e-9) -> None:
    """Answer by answer: the same words of the same ancestry, with the same scores."""
    for answers, others in zip(found, wanted, strict=True):
        some = [answers] if isinstance(answers, Hypothesis) else answers
        for one, other in zip(some, [others] if isinstance(others, Hypothesis) else others, strict=True):
            assert (one.tokens, one.finished, one.rows) == (other.tokens, other.finished, other.rows)
            assert (one.score, one.logprob) == pytest.approx((other.score, other.logprob), abs=within)


@each_family
@pytest.mark.parametrize("seed", range(3))
def test_what_goes_ahead_finds_what_the_plain_search_finds(family: str, seed: int) -> None:
    """Whatever the limits, filters, ends and rows, and however often the host looks who is done."""
    dice = random.Random(f"{family} {seed}")
    torch.manual_seed(seed)
    kind, within = dice.choice([(torch.float64, 1e-9), (torch.float32, 1e-3)])
    model, rows = make(family, kind), dice.randint(1, 6)
    start, prompt = beginning(model, dice, rows)
    ahead = Captured(model, RECORD, every=dice.choice([1, 3, 8]))
    for search, how in searches(dice, rows):
        limit = torch.tensor([dice.randint(2, 12), *(dice.randint(1, 12) for _ in range(rows - 1))])
        asked = {"eos": EOS, "limit": limit, **how}
        wanted = search(model.step, start(), prompt, **asked)
        for _ in range(2):  # the second time, what was captured is there already
            agree(search(ahead, start(), prompt, **asked), wanted, within)
    assert ahead.captures
    assert not ahead.broken


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_a_desk_ranks_by_the_penalty_of_who_asks(family: str) -> None:
    """Also where it was made for somebody with another."""
    for seed in range(6):
        torch.manual_seed(seed)
        model = make(family)
        start, prompt = beginning(model, random.Random(seed), 3)
        ahead = Captured(model, RECORD)
        for penalty in (none(1), average(1), wu(3), none(1)):
            asked = {"eos": EOS, "limit": 12, "keep": 3, "penalty": penalty}
            agree(beam(ahead, start(), prompt, **asked), beam(model.step, start(), prompt, **asked))


@pytest.mark.parametrize("family", ["gpt", "transformer", "seq2seq bahdanau"])
@pytest.mark.parametrize("before", [1, 20, 30, 50])
def test_it_goes_on_from_what_a_state_has_read_before(family: str, before: int) -> None:
    """There is room for all of that, too, and where a model has none the plain search says so."""
    model = make(family, **({"context": 70} if family == "gpt" else {}))
    start, prompt = beginning(model, random.Random(before), 2)
    story = torch.randint(3, VOCAB, (2, before), device=DEVICE)
    ahead = Captured(model, RECORD)
    for search, how in ((greedy, {}), (beam, {"keep": 3})):
        asked = {"eos": EOS, "limit": 12, **how}
        with torch.inference_mode():
            found, wanted = (
                search(step, model.step(story, start())[1], prompt, **asked) for step in (ahead, model.step)
            )
        agree(found, wanted)
    assert ahead.captures


@each_family
@pytest.mark.parametrize("search", [{}, {"keep": 3}], ids=["greedy", "beam"])
def test_an_answer_without_numbers_leaves_nothing_to_the_next(family: str, search: dict[str, int]) -> None:
    """What is hidden counts zero times, and zero times NaN is NaN."""
    model, find = make(family), beam if search else greedy
    ahead, asked = Captured(model, RECORD), {"eos": EOS, "limit": 9, **search}
    start, prompt = beginning(model, random.Random(8), 2)
    wanted = find(model.step, start(), prompt, **asked)
    for _ in range(2):
        agree(find(ahead, start(), prompt, **asked), wanted)
        (desk,) = ahead.desks.values()
        with torch.inference_mode():
            for t in (*desk.standing.by_sentence(), *desk.standing.loose, desk.totals, desk.ranks):
                t.fill_(float("nan") if t.is_floating_point() else 1)


@pytest.mark.parametrize("kind", [Prompt, Source])
def test_a_place_keeps_nothing_of_what_was_read_there(kind: type[Prompt] | type[Source]) -> None:
    model = make("gpt" if kind is Prompt else "transformer")
    with torch.inference_mode():
        place = kind(model, torch.zeros(2, 16, dtype=torch.long, device=DEVICE))
        for length in (16, 5):
            tokens = torch.full((2, length), 7, device=DEVICE)
            _ = place.read(tokens) if isinstance(place, Prompt) else place.read(tokens, None)
    assert not place.tokens[:, 5:].any()


def test_where_memory_did_not_suffice_once_it_is_tried_again() -> None:
    model, room = make("gpt"), [False, True]

    def record(act: Act, pool: Any) -> Replay:
        if not room.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return RECORD(act, pool)

    places, tokens = Places(Prompt, record, 2), torch.ones(1, 5, dtype=torch.long, device=DEVICE)
    with torch.inference_mode():
        assert [places.find(model, tokens, None) is not None for _ in range(3)] == [False, False, True]


@each_family
def test_a_standing_state_is_the_growing_one(family: str) -> None:
    """Logits, step by step, while hypotheses follow one another at random."""
    dice, width, model = random.Random(family), 3, make(family)
    start, prompt = beginning(model, dice, 2)
    with torch.inference_mode():
        _, state = model.step(prompt, start())
        standing = Standing(state, sentences=2, width=width, capacity=24, source=32)
        standing.enter(state, torch.arange(2, device=DEVICE), 0)
        growing = repeat(state, width)
        for _ in range(10):
            tokens = torch.randint(3, VOCAB, (2 * width, 1), device=DEVICE)
            wanted, growing = model.step(tokens, growing)
            found, after = model.step(tokens, standing.state())
            torch.testing.assert_close(found, wanted)
            parents = torch.tensor([s * width + dice.randrange(width) for s in range(2) for _ in range(width)])
            standing.follow(tensors(after.past), parents.to(DEVICE))
            growing = reorder(growing, parents.to(DEVICE))


def test_whoever_is_left_gets_a_smaller_desk() -> None:
    model = make("gpt")
    start, prompt = beginning(model, random.Random(1), 5)
    ahead = Captured(model, RECORD, every=2)
    limit = torch.tensor([3, 3, 20, 5, 9])
    found = greedy(ahead, start(), prompt, eos=-1, limit=limit)
    assert [len(h.tokens) for h in found] == limit.tolist()
    assert [size[0] for size in ahead.desks] == [8, 2]  # type: ignore[index]
    greedy(ahead, start(), prompt, eos=-1, limit=limit)
    assert ahead.captures == 2, "what was captured is used again"
    greedy(ahead, start(), prompt[:1], eos=-1, limit=20)
    greedy(ahead, start(), prompt, eos=-1, limit=limit)
    assert [size[0] for size in ahead.desks] == [8, 2, 1]  # type: ignore[index]
    assert ahead.bytes > 0


def test_the_host_does_not_ask_for_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never for more words than somebody may say."""
    model, looks, steps = make("transformer"), [], []
    start, prompt = beginning(model, random.Random(2), 3)
    look, go = Desk.look, Desk.go
    monkeypatch.setattr(Desk, "look", lambda desk, n: looks.append(n) or look(desk, n))
    monkeypatch.setattr(Desk, "go", lambda desk, n: steps.append(n) or go(desk, n))
    ahead = Captured(model, RECORD, every=8)
    greedy(ahead, start(), prompt, eos=-1, limit=20)
    assert looks == steps == [8, 8, 3], "the first words are chosen where the prompt is read"
    greedy(ahead, start(), prompt, eos=-1, limit=20)
    assert looks == steps == [8, 8, 3, 8, 8, 4], "one token is read as any other"


class Told:
    def __call__(self, moment: Any) -> None:
        pass


def odd(logits: Tensor, story: Tensor) -> Tensor:
    """A filter that could do anything."""
    return logits


ASIDE: dict[str, dict[str, Any]] = {
    "a record": {"tell": Told()},
    "a prefix": {"prefixes": [[5, 6], [7]]},
    "an unknown filter": {"filters": (odd,)},
    "one word": {"limit": 1},
}


@pytest.mark.parametrize("why", [*ASIDE, "coverage", "watch", "silence", "training", "autocast", "room"])
def test_it_steps_aside(why: str) -> None:
    model = make("additive transformer", torch.float32)
    start, prompt = beginning(model, random.Random(3), 2)
    ahead = Captured(model, RECORD)
    asked = {"eos": EOS, "limit": 6, "keep": 2, **ASIDE.get(why, {})}
    if why == "coverage":
        real = torch.ones(2, 4, dtype=torch.bool, device=DEVICE)
        asked |= {"coverage": Coverage(0.1, lambda: real.float(), real), "keep": 1, "eos": -1}
    if why == "watch":
        with watch(model) as seen:
            beam(ahead, start(), prompt, **asked)
        assert all(seen.values())
    elif why == "silence":
        with silence(model, "decoder.0.cross", 0):
            beam(ahead, start(), prompt, **asked)
    elif why == "training":
        model.train()
        beam(ahead, start(), prompt, **asked)
    elif why == "autocast":
        with torch.autocast(DEVICE.type, torch.bfloat16):
            beam(ahead, start(), prompt, **asked)
    elif why == "room":
        model.longest = 5  # and so the last word could not be written; the plain search says what to do about it
        beam(ahead, start(), prompt, **asked)
    else:
        beam(ahead, start(), prompt, **asked)
    assert not ahead.captures
    assert not ahead.broken


def test_what_cannot_be_captured_is_searched_for_plainly_with_one_warning() -> None:
    def refuse(act: Act, pool: Any) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing\nand more of that")

    model = make("gpt")
    start, prompt = beginning(model, random.Random(4), 2)
    ahead, asked = Captured(model, refuse), {"eos": EOS, "limit": 9}
    wanted = greedy(model.step, start(), prompt, **asked)
    said = (
        r"^the steps of this GPT could not be captured \(RuntimeError: operation not permitted when stream is "
        r"capturing\); it is searched word by word, which is slower and says the same$"
    )
    with pytest.warns(UserWarning, match=said):
        assert greedy(ahead, start(), prompt, **asked) == wanted
    assert greedy(ahead, start(), prompt, **asked) == wanted
    assert ahead.broken


class Broken:
    """Kernels for which there is no compiler."""

    def suit(self, buffer: Tensor, queries: int) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Failed to find C compiler")


def test_kernels_that_cannot_be_run_are_left_out_with_one_warning() -> None:
    def work(act: Act, pool: Any) -> Replay:
        act()  # as a rehearsal does
        return RECORD(act, pool)

    model = make("gpt")
    start, prompt = beginning(model, random.Random(4), 2)
    ahead, asked = Captured(model, work, kernels=Broken()), {"eos": EOS, "limit": 9}
    wanted = greedy(model.step, start(), prompt, **asked)
    said = (
        r"^the steps of this GPT could not be captured in our own kernels \(RuntimeError: Failed to find C compiler\)"
    )
    with pytest.warns(UserWarning, match=said + "; PyTorch's are taken$"):
        agree(greedy(ahead, start(), prompt, **asked), wanted)
    agree(greedy(ahead, start(), prompt, **asked), wanted)
    assert ahead.captures == 1
    assert not ahead.broken


def test_a_past_that_changes_its_size_is_searched_for_plainly() -> None:
    """Of a network of convolutions, as long as it has not read as far as it reaches."""
    model = tcn.TCN(tcn.Config(vocab=VOCAB, dim=8, levels=3)).to(DEVICE).eval()
    prompt = torch.randint(3, VOCAB, (2, 2), device=DEVICE)

    def tried(act: Act, pool: Any) -> Replay:
        act()
        return act

    with pytest.warns(UserWarning, match="TCN could not be captured"):
        found = greedy(Captured(model, tried), model.start(), prompt, eos=EOS, limit=6)
    assert found == greedy(model.step, model.start(), prompt, eos=EOS, limit=6)


@pytest.mark.parametrize("family", ["gpt", "recurrent language model"])
def test_prompts_of_a_size_that_came_before_are_read_in_one_call(family: str) -> None:
    """Filled up at their end, which only models may be that look and remember nothing else."""
    model = make(family)
    ahead, dice = Captured(model, RECORD), random.Random(6)
    for length, kept in ((5, 0), (9, 1), (14, 1), (17, 1), (20, 2), (3, 2), (1, 2)):
        prompt = torch.randint(3, VOCAB, (2, length), device=DEVICE)
        asked = {"eos": EOS, "limit": dice.randint(2, 6)}
        found, wanted = (greedy(step, model.start(rows=2), prompt, **asked) for step in (ahead, model.step))
        agree(found, wanted)
        assert len(ahead.prompts.made) == kept or family != "gpt"
    assert ahead.prompts.suited == (family == "gpt")


@pytest.mark.parametrize("family", ["transformer", "additive transformer", "seq2seq bahdanau", "seq2seq sutskever"])
def test_sources_of_a_size_that_came_before_are_read_in_one_call(family: str) -> None:
    """Filled up at their end, and each with numbers of its own, also where another of its size was read meanwhile."""
    model = make(family)
    ahead, kept = Captured(model, RECORD), []
    with torch.inference_mode():
        for length, masked in ((5, False), (9, True), (14, False), (16, True), (17, False), (20, False), (3, True)):
            source = torch.randint(3, VOCAB, (3, length), device=DEVICE)
            real = (torch.arange(length) < torch.tensor([[length], [2], [1]])).to(DEVICE) if masked else None
            kept.append((source, real, ahead.start(source, real)))
        for source, real, state in kept:
            prompt = torch.full((3, 1), BOS, device=DEVICE)
            found, wanted = (model.step(prompt, one)[0] for one in (state, model.start(source, real)))
            torch.testing.assert_close(found, wanted)
    assert [*ahead.sources.sizes] == ([(4, 32), (4, 16)] if "transformer" in family else [])
    assert len(ahead.sources.made) == (2 if "transformer" in family else 0)


def test_what_was_recorded_stays_and_what_was_seen_once_makes_room() -> None:
    model = make("gpt")
    places = Places(Prompt, RECORD, 2)

    def find(rows: int) -> bool:
        return places.find(model, torch.ones(rows, 5, dtype=torch.long, device=DEVICE), None) is not None

    with torch.inference_mode():
        assert [find(rows) for rows in (3, 4, 8, 1, 8, 1, 1, 3, 8, 8)] == [0, 1, 0, 0, 0, 0, 1, 1, 0, 0]
    assert [rows for rows, _ in places.sizes] == [1, 4]


def test_a_source_that_is_too_long_is_refused_each_time_alike() -> None:
    model = capture(make("transformer", positions="learned", context=32), RECORD)
    source = torch.randint(3, VOCAB, (2, 40), device=DEVICE)
    with torch.inference_mode():
        for _ in range(3):
            with pytest.raises(ConfigError, match="the learned positions end at 32"):
                model.start(source)


@pytest.mark.parametrize("who", ["a hook", "a hook of all", "a method", "somebody", "training", "gradients"])
def test_sources_are_read_as_ever_where_somebody_wants_to_know(who: str) -> None:
    model = capture(make("transformer"), RECORD)
    source, called = torch.randint(3, VOCAB, (2, 5), device=DEVICE), []
    with torch.inference_mode():
        for _ in range(2):
            model.start(source)
    assert isinstance(model.step, Captured)
    assert len(model.step.sources.made) == 1
    (place,) = model.step.sources.made
    place.replay = lambda: pytest.fail("it was replayed")
    encoder: torch.nn.Module = model.encoder[0]  # type: ignore[union-attr, index, operator]
    if who == "a hook":
        encoder.register_forward_hook(lambda *_: called.append(1))
    if who == "a method":
        forward = encoder.forward
        encoder.forward = lambda *a, **k: called.append(1) or forward(*a, **k)  # type: ignore[func-returns-value]
    every = register_module_forward_hook(lambda part, *_: called.append(1) if part is encoder else None)
    if who != "a hook of all":
        every.remove()
    model.train(who == "training")
    watched = watch(model, "encoder.0.attention") if who == "somebody" else nullcontext({})
    with torch.inference_mode(who != "gradients"), watched as seen:
        model.start(source)
    assert len(seen.get("encoder.0.attention", [])) == (who == "somebody")
    every.remove()
    assert len(called) == (who in ("a hook", "a hook of all", "a method"))


@pytest.mark.parametrize("change", ["trained", "moved", "packed again"])
def test_a_graph_of_other_weights_is_forgotten(change: str) -> None:
    model = make("gpt")
    start, prompt = beginning(model, random.Random(5), 2)
    ahead, asked = Captured(model, RECORD), {"eos": EOS, "limit": 9}
    greedy(ahead, start(), prompt, **asked)
    if change == "trained":
        with torch.no_grad():
            model.words.weight.add_(torch.randn_like(model.words.weight))
    elif change == "moved":
        model.words.weight.data = model.words.weight.data.flip(0).clone()
    else:
        pack(model)
    agree(greedy(ahead, start(), prompt, **asked), greedy(model.step, start(), prompt, **asked))
    assert ahead.captures == 2


def as_then(model: Any, act: Act, pool: Any) -> Replay:
    """What a graph does is what the model did when it was captured: nobody may ask it later."""
    act()
    then = Likeness(parts_of(model))

    def replay() -> None:
        assert Likeness(parts_of(model)).same(then)
        act()

    return replay


def test_a_graph_of_other_settings_is_forgotten() -> None:
    """And whoever wants to draw dropout in an answer has it drawn."""
    model = make("gpt")
    start, prompt = beginning(model, random.Random(5), 2)
    ahead, asked = (
        Captured(model, RECORD if DEVICE.type == "cuda" else partial(as_then, model)),
        {"eos": EOS, "limit": 9},
    )
    norm, feed_forward = model.norm, model.blocks[0].feed_forward
    for part, name, value in [(norm, "eps", 3.0), (feed_forward, "activation", torch.tanh), (norm, "training", True)]:
        before = greedy(ahead, start(), prompt, **asked)
        setattr(part, name, value)
        found = greedy(ahead, start(), prompt, **asked)
        agree(found, greedy(model.step, start(), prompt, **asked))
        assert [h.logprob for h in found] != [h.logprob for h in before] or name == "training"
    assert ahead.captures == 3  # while a part of it learns, none


def test_a_graph_of_a_table_that_has_grown_is_forgotten() -> None:
    """Waves are drawn as far as they are needed, and then lie elsewhere."""
    model = make("transformer")
    model.positions.table = model.positions.table[:8].clone()  # type: ignore[union-attr, operator]
    start, prompt = beginning(model, random.Random(6), 2)
    ahead, asked = Captured(model, RECORD), {"eos": -1, "limit": 70}
    for limit in (20, 70, 20):
        asked = {"eos": -1, "limit": limit}
        agree(greedy(ahead, start(), prompt, **asked), greedy(model.step, start(), prompt, **asked))


def test_a_captured_model_is_asked_as_any_other() -> None:
    model = make("transformer")
    start, prompt = beginning(model, random.Random(7), 3)
    wanted = beam(model.step, start(), prompt, eos=EOS, limit=9, keep=3)
    twin = copy.deepcopy(capture(model, RECORD))
    agree(beam(model.step, start(), prompt, eos=EOS, limit=9, keep=3), wanted)
    assert isinstance(model.step, Captured)
    assert model.step.captures
    assert isinstance(twin.step, Captured)
    assert twin.step.model is twin
    alone = copy.deepcopy(model.step)
    assert alone.model is not model
    with torch.inference_mode():
        torch.testing.assert_close(model.step(prompt, start())[0], twin.step(prompt, start())[0])


def test_a_captured_model_can_be_saved_whole() -> None:
    model = capture(make("transformer"), RECORD, kernels=narrow)
    start, prompt = beginning(model, random.Random(7), 3)
    wanted = greedy(model.step, start(), prompt, eos=EOS, limit=9)
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again.step, Captured)
    assert again.step.model is again
    assert again.start.__self__ is again.step
    assert again.step.kernels is narrow
    agree(greedy(again.step, start(), prompt, eos=EOS, limit=9), wanted)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there it is captured")
def test_where_there_is_nothing_to_capture_a_model_stays_as_it_is() -> None:
    model = make("gpt")
    start, prompt = beginning(model, random.Random(9), 2)
    assert "step" not in vars(capture(model))
    assert "step" not in vars(capture(torch.nn.Linear(2, 2)))
    ahead = Captured(model)
    assert greedy(ahead, start(), prompt, eos=EOS, limit=4) == greedy(model.step, start(), prompt, eos=EOS, limit=4)
    assert not ahead.captures


def test_there_are_few_sizes_and_none_is_much_too_large() -> None:
    for grain in (16, 32):
        sizes = {roomy(need, grain) for need in range(1, 1025)}
        assert len(sizes) < 40
        for need in range(1025):
            room = roomy(need, grain)
            assert need <= room <= max(1.25 * need, need + grain)
            assert room % grain == 0
            assert roomy(room, grain) == room


@pytest.mark.parametrize("vocab", [4096, 5000, 32_000])
def test_the_best_of_the_best_groups_are_the_best_of_all(vocab: int) -> None:
    chance = torch.randn(6, vocab, device=DEVICE)
    chance[0, 7:] = float("-inf")  # fewer than are asked for
    best, words = best_of_groups(chance, 5)
    assert torch.equal(best, chance.topk(5).values)
    assert torch.equal(chance.gather(1, words), best)
    assert torch.equal(words[1:], chance.topk(5).indices[1:])
    assert all(len(set(row)) == 5 for row in words[1:].tolist())


def test_threads_that_ask_at_once_have_the_answers_of_one_alone() -> None:
    model = capture(make("gpt"), RECORD)
    given = [torch.randint(3, VOCAB, (1 + i % 3, 2), device=DEVICE) for i in range(4)]

    def answer(prompt: Tensor) -> list[tuple[int, ...]]:
        found = greedy(model.step, model.start(rows=len(prompt)), prompt, eos=EOS, limit=20)
        return [one.tokens for one in found]

    alone = [answer(prompt) for prompt in given]
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(answer, given * 5)] == alone * 5


def test_while_one_thread_captures_another_meets_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers have stand-ins by then, which know of nothing but a step."""
    model, prompt = make("gpt"), torch.randint(3, VOCAB, (2, 5), device=DEVICE)

    def logits() -> Tensor:
        with torch.no_grad():
            return model.step(prompt, model.start(rows=2))[0]

    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("a stand-in was called")

    wanted = logits()
    monkeypatch.setattr(narrow, "suit", lambda *_: True)
    monkeypatch.setattr(narrow.kernels, "normed", refuse)
    with ThreadPoolExecutor(1) as another:
        with narrow.narrowed(model, 1):
            assert torch.equal(another.submit(logits).result(), wanted)
            with pytest.raises(AssertionError, match="a stand-in"):
                model.norm(torch.zeros(1, 16, dtype=torch.float64, device=DEVICE))  # type: ignore[operator]
        assert torch.equal(logits(), wanted)


def test_what_a_fused_optimizer_changed_is_noticed() -> None:
    model = capture(make("gpt", torch.float32), RECORD)
    prompt = torch.randint(3, VOCAB, (2, 2), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3, fused=True)

    def answer(step: Any) -> list[tuple[int, ...]]:
        return [one.tokens for one in greedy(step, model.start(rows=2), prompt, eos=EOS, limit=12)]

    before = answer(model.step)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    assert answer(model.step) == answer(lambda tokens, state: Autoregressive.step(model, tokens, state)) != before
