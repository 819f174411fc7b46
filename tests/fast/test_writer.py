"""The search in one call says what the plain search says, word for word; where it cannot, it steps aside."""

from __future__ import annotations

import copy
import math
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from regard.core.linear import Linear
from regard.core.watch import silence, watch
from regard.decode import Hypothesis, beam, greedy
from regard.decode.filters import at_least, never
from regard.decode.search import average, none, wu
from regard.fast import writer
from regard.fast.build import Unbuilt
from regard.fast.writer import Writer
from regard.models import gpt, seq2seq, transformer

END = 2
Model = transformer.Transformer | gpt.GPT
pytestmark = pytest.mark.usefixtures("accelerator")


# ---- models and questions


def drawn(dice: random.Random, *, writes_only: bool) -> Model:
    """Any model that the accelerator knows."""
    pick = dice.choice
    torch.manual_seed(dice.randrange(10**6))
    heads = pick([1, 2, 3])
    shared = {
        "vocab": pick([11, 40, 530]), "dim": heads * pick([8, 11, 16]), "heads": heads, "context": 64,
        "norm": pick(["pre", "post"]), "activation": pick(["relu", "gelu", "gelu_tanh", "silu"]),
        "bias": pick([True, False]), "layers": pick([1, 2]), "hidden": pick([9, 32]),
    }  # fmt: skip
    if writes_only:
        return restless(gpt.GPT(gpt.Config(**shared, tied=pick([True, False]))))
    own = pick([None, 17])
    tied = pick(["target", "none"]) if own else pick(["all", "words", "target", "none"])
    return restless(
        transformer.Transformer(
            transformer.Config(
                **shared, source_vocab=own, tied=tied, decoder_layers=pick([None, 1]),
                positions=pick(["sinusoidal", "halves", "learned"]), source_positions=pick(["shared", "own"]),
                offset=pick([0, 2]), scaled=pick([True, False]), embedding_norm=pick([True, False]),
                head_bias=pick([True, False]),
            )
        )
    )  # fmt: skip


def restless(model: Any) -> Any:
    """Larger matrices than at birth: what is said hangs on everything before it, and no two answers are alike."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * (0.4 if weight.ndim > 1 else 0.2))
    return model.eval()


def asked(model: Model, dice: random.Random, rows: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """A source, what of it is real, and a prompt."""
    if not model.sourced:
        return None, None, torch.randint(model.words.num_embeddings, (rows, dice.choice([1, 2, 7])))
    longest = dice.choice([1, 6, 20])
    lengths = torch.tensor([longest, *(dice.randint(1, longest) for _ in range(rows - 1))])
    source = torch.randint(model.source_words.num_embeddings, (rows, longest))
    return source, torch.arange(longest) < lengths[:, None], torch.ones(rows, 1, dtype=torch.long)


@torch.inference_mode()
def plain(model: Model, source: Tensor | None, real: Tensor | None, prompt: Tensor, **how: Any) -> Any:
    filters = [never(*banned)] if (banned := how.pop("banned", ())) else []
    filters += [at_least(shortest, END)] if (shortest := how.pop("shortest", 0)) else []
    state = model.start(source, real, rows=len(prompt))
    if "penalty" not in how:
        return [[h] for h in greedy(model.step, state, prompt, eos=END, filters=tuple(filters), **how)]
    return beam(model.step, state, prompt, eos=END, filters=tuple(filters), **how)


@torch.inference_mode()
def quick(model: Model, *given: Tensor | None, whole: bool = False, **how: Any) -> Any:
    return Writer(model, whole=whole)(*given, eos=END, **how)


def same(quick: list[list[Hypothesis]], plain: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(quick, plain, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.tokens, one.finished, one.rows) == (other.tokens, other.finished, other.rows)
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


@pytest.mark.parametrize(("rows", "threads"), [(17, 2), (33, 2), (33, 3)])
@pytest.mark.parametrize("sourced", [True, False])
def test_shared_out_among_threads_it_is_the_plain_search_with_its_rows(
    sourced: bool, rows: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences end at different lengths, and their rows leave: those behind them move up."""
    model, before = drawn(random.Random(rows), writes_only=not sourced), torch.get_num_threads()
    given = asked(model, random.Random(0), rows)
    limits = torch.tensor([1 + row % 7 for row in range(rows)])
    try:
        torch.set_num_threads(threads)
        for how in ({}, {"keep": 3, "penalty": none(0)}):
            same(quick(model, *given, limit=limits, **how), plain(model, *given, limit=limits, **how))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("sourced", [True, False])
def test_several_threads_at_few_sentences_say_what_one_thread_says(sourced: bool, threads: int, whole: bool) -> None:
    """Large enough that each product is shared out, among more threads than there are cores, too."""
    torch.manual_seed(threads)
    shared = {"vocab": 1_100, "dim": 144, "heads": 6, "layers": 2, "hidden": 576, "context": 64}
    model = (transformer.Transformer(transformer.Config(**shared)) if sourced else gpt.GPT(gpt.Config(**shared))).eval()
    prompt = torch.randint(4, 1_100, (3, 1 if sourced else 40))
    source = torch.randint(4, 1_100, (3, 40)) if sourced else None
    for rows, how in (
        (1, {}),
        (3, {"keep": 4, "penalty": wu(0.6), "banned": (5, 600, 1_099), "shortest": 3}),
    ):
        given = None if source is None else source[:rows], None, prompt[:rows]
        alone = quick(model, *given, limit=12, whole=whole, **how)
        try:
            torch.set_num_threads(threads)
            together = quick(model, *given, limit=12, whole=whole, **how)
        finally:
            torch.set_num_threads(1)
        assert together == alone
        if not whole:
            same(alone, plain(model, *given, limit=12, **how))


# ---- the laws


@pytest.mark.parametrize("writes_only", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_it_finds_what_the_plain_search_finds(seed: int, writes_only: bool) -> None:
    dice = random.Random(seed)
    model, rows = drawn(dice, writes_only=writes_only), dice.choice([1, 2, 5])
    given = asked(model, dice, rows)
    how: dict[str, Any] = {"limit": torch.tensor([dice.randint(1, 12) for _ in range(rows)])}
    if dice.random() < 0.8:
        how |= {"keep": dice.choice([1, 2, 4]), "expand": dice.choice([None, 1, 2, 3])}
        how |= {"penalty": dice.choice([wu(0.6), none(0.0), average(1.0)])}
    if dice.random() < 0.3:
        how["prefixes"] = [[dice.randrange(3, 9) for _ in range(dice.randint(0, 3))] for _ in range(rows)]
    more = {"shortest": dice.choice([0, 2]), "banned": dice.choice([(), (0, 1)])}
    same(quick(model, *given, **how, **more), plain(model, *given, **how, **more))


def test_a_prefix_may_hold_the_end_and_what_is_never_said() -> None:
    model = drawn(random.Random(1), writes_only=True)
    given = asked(model, random.Random(1), 2)
    how: dict[str, Any] = {"limit": 5, "keep": 3, "penalty": wu(0.6), "prefixes": [[0, END], [1]], "banned": (0, 1)}
    same(quick(model, *given, **how), plain(model, *given, **how))


def test_more_is_kept_than_there_are_words() -> None:
    torch.manual_seed(0)
    model = restless(gpt.GPT(gpt.Config(vocab=5, dim=16, heads=2, layers=1, context=32)))
    given = asked(model, random.Random(0), 2)
    how: dict[str, Any] = {"limit": 6, "keep": 7, "penalty": wu(0.6), "banned": (0, 1)}
    same(quick(model, *given, **how), plain(model, *given, **how))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("writes_only", [False, True])
def test_an_answer_does_not_depend_on_who_else_asks(writes_only: bool, whole: bool) -> None:
    dice = random.Random(3)
    model = drawn(dice, writes_only=writes_only)
    source, real, prompt = asked(model, dice, 17)
    how: dict[str, Any] = {"limit": 9, "keep": 3, "penalty": wu(0.6), "whole": whole}
    together = quick(model, source, real, prompt, **how)
    for row in (0, 7, 16):
        alone = None if source is None or real is None else source[row : row + 1, real[row]]
        (found,) = quick(model, alone, None, prompt[row : row + 1], **how)
        assert [(h.tokens, h.score) for h in found] == [(h.tokens, h.score) for h in together[row]]
    torch.set_num_threads(2)
    try:
        apart = quick(model, source, real, prompt, **how)
    finally:
        torch.set_num_threads(1)
    assert [[(h.tokens, h.score) for h in best] for best in apart] == [
        [(h.tokens, h.score) for h in best] for best in together
    ]


def test_in_bytes_it_is_the_model_that_it_was_given_but_for_rounding() -> None:
    """Log-probabilities of what both say are near."""
    torch.manual_seed(0)
    model = restless(gpt.GPT(gpt.Config(vocab=50, dim=64, heads=4, layers=2, context=64)))
    given = asked(model, random.Random(0), 8)
    off = [
        abs(ours[0].logprob - theirs[0].logprob)
        for ours, theirs in zip(
            quick(model, *given, limit=1, whole=True), quick(model, *given, limit=1), strict=True
        )
        if ours[0].tokens == theirs[0].tokens
    ]  # fmt: skip
    assert len(off) >= 6
    assert 0 < max(off) < 0.5


def test_weights_that_have_changed_are_read_again() -> None:
    dice = random.Random(5)
    model = drawn(dice, writes_only=True)
    given = asked(model, dice, 3)
    writer, said = Writer(model, whole=False), []
    for _ in range(3):
        with torch.inference_mode():
            found = writer(*given, eos=END, limit=8)
        assert found is not None
        same(found, plain(model, *given, limit=8))
        said.append([best[0].tokens for best in found])
        with torch.no_grad():  # once in place, then by another tensor
            model.blocks[0].feed_forward.wide.weight.add_(1.0)
            model.words.weight = torch.nn.Parameter(torch.randn_like(model.words.weight))
    assert said[0] != said[1] != said[2]


SETTINGS: dict[str, Callable[[gpt.GPT], object]] = {
    "an activation": lambda model: [setattr(block.feed_forward, "activation", F.relu) for block in model.blocks],
    "an epsilon": lambda model: setattr(model.blocks[1].around_attention.norm, "eps", 3.0),
    "a norm": lambda model: setattr(model, "norm", torch.nn.Identity().eval()),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_that_have_changed_are_read_again(setting: str) -> None:
    torch.manual_seed(0)
    model = restless(gpt.GPT(gpt.Config(vocab=12, dim=16, heads=2, layers=2, context=32)))
    given = asked(model, random.Random(5), 3)
    writer = Writer(model, whole=False)
    before = writer(*given, eos=END, limit=8)
    SETTINGS[setting](model)
    with torch.inference_mode():
        found = writer(*given, eos=END, limit=8)
    assert before is not None
    assert found is not None
    same(found, plain(model, *given, limit=8))
    assert [best[0].score for best in found] != [best[0].score for best in before]


@pytest.mark.parametrize("fused", [True, False])
def test_weights_that_an_optimizer_has_changed_are_read_again(fused: bool) -> None:
    model = drawn(random.Random(5), writes_only=True)
    given = asked(model, random.Random(5), 3)
    writer, step = Writer(model, whole=False), torch.optim.AdamW(model.parameters(), lr=0.5, fused=fused)
    before = writer(*given, eos=END, limit=8)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    step.step()
    step.zero_grad()
    found = writer(*given, eos=END, limit=8)
    assert found is not None
    assert before is not None
    same(found, plain(model, *given, limit=8))
    assert [best[0].tokens for best in found] != [best[0].tokens for best in before]


def test_after_another_precision_it_is_there_again() -> None:
    model = drawn(random.Random(5), writes_only=True)
    given = asked(model, random.Random(5), 3)
    writer = Writer(model, whole=False)
    assert writer(*given, eos=END, limit=4)
    model.double()
    assert writer(*given, eos=END, limit=4) is None
    model.float()
    assert writer(*given, eos=END, limit=4)


def test_a_model_made_where_nothing_is_tracked_can_be_asked() -> None:
    with torch.inference_mode():
        model = drawn(random.Random(5), writes_only=True)
        given = asked(model, random.Random(5), 3)
    same(quick(model, *given, limit=6), plain(model, *given, limit=6))


# ---- it steps aside


@pytest.fixture
def model() -> transformer.Transformer:
    torch.manual_seed(0)
    config = transformer.Config(vocab=12, dim=16, heads=2, layers=1, hidden=16, positions="learned", context=16)
    return restless(transformer.Transformer(config))


SOURCE, PROMPT = torch.randint(12, (2, 5)), torch.ones(2, 1, dtype=torch.long)


def says_something(model: Any, source: Tensor | None = SOURCE, real: Tensor | None = None, **how: Any) -> bool:
    return quick(model, source, real, how.pop("prompt", PROMPT), limit=how.pop("limit", 4), **how) is not None


def test_it_steps_aside_while_somebody_watches_silences_or_hooks(model: transformer.Transformer) -> None:
    assert says_something(model)
    with watch(model):
        assert not says_something(model)
    with silence(model, "decoder.0.cross", heads=[0]):
        assert not says_something(model)
    hook = model.decoder[0].register_forward_hook(lambda *_: None)
    assert not says_something(model)
    hook.remove()
    everywhere = register_module_forward_hook(lambda *_: None)
    assert not says_something(model)
    everywhere.remove()
    assert says_something(model)


class Own(transformer.Transformer):
    """Somebody else's."""


class OwnLinear(Linear):
    """Likewise."""


def test_models_that_were_changed_are_left_to_the_plain_search(model: transformer.Transformer) -> None:
    assert not says_something(Own(model.config).eval())
    for name in ("start", "states", "step"):
        model.__dict__[name] = getattr(model, name)
        assert not says_something(model)
        del model.__dict__[name]
    block = model.decoder[0]
    block.forward = block.forward
    assert not says_something(model)
    del block.forward
    assert says_something(model)


def test_it_serves_again_once_a_change_was_undone(model: transformer.Transformer) -> None:
    block, writer = model.decoder[0], Writer(model, whole=False)
    for part, name in [(block.attention, "inward"), (block.cross.score, "prepare"), (model.head, "logits")]:
        assert writer(SOURCE, None, PROMPT, eos=END, limit=4) is not None
        setattr(part, name, getattr(part, name))  # whoever replaced it may want to know of each call
        assert writer(SOURCE, None, PROMPT, eos=END, limit=4) is None
        delattr(part, name)
        part.train()  # as for dropout that is drawn while a model is asked
        assert writer(SOURCE, None, PROMPT, eos=END, limit=4) is None
        part.eval()
    assert writer(SOURCE, None, PROMPT, eos=END, limit=4) is not None


def test_parts_of_somebody_elses_are_left_to_the_plain_search(model: transformer.Transformer) -> None:
    block = model.decoder[0]
    block.feed_forward.wide = OwnLinear(16, 16)
    assert not says_something(model)


def test_it_steps_aside_in_training_and_in_other_precisions(model: transformer.Transformer) -> None:
    assert not says_something(model.train())
    assert not says_something(copy.deepcopy(model).eval().double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not says_something(model.eval())
    assert says_something(model.eval())


def test_questions_that_it_cannot_answer_are_left_to_the_plain_search(model: transformer.Transformer) -> None:
    real = torch.ones(2, 5, dtype=torch.bool)
    assert says_something(model, real=real)
    assert not says_something(model, real=real & (torch.arange(5) > 0))  # padded on the left
    assert not says_something(model, real=real & torch.tensor([[True], [False]]))  # nothing to read
    assert not says_something(model, limit=17)  # beyond the last position, for which the model has its own sentence
    assert not says_something(model, SOURCE + 8)  # no such words, likewise
    assert not says_something(model, prompt=PROMPT.repeat(1, 2))
    assert not says_something(model, prompt=PROMPT + 11)
    assert not says_something(model, limit=0)
    assert says_something(model, prefixes=[[4], [11]])
    assert not says_something(model, prefixes=[[4], [12]])
    assert not says_something(model, prefixes=[[4], [400_000_000]])
    assert not says_something(model, prefixes=[[4], [5, -1, 6]])
    assert says_something(model, banned=(11,))
    assert not says_something(model, banned=(12,))
    assert not says_something(model, banned=(-1,))
    assert not says_something(model, prefixes=[[4]])
    assert not says_something(model, SOURCE[:0], prompt=PROMPT[:0])
    assert not says_something(model, prompt=PROMPT[:, :0])


@pytest.mark.parametrize("settings", [{"score": "additive"}, {"normalise": "batch"}, {"normalise": "none"}])
def test_other_scores_and_norms_are_left_to_the_plain_search(settings: dict[str, Any]) -> None:
    config = transformer.Config(vocab=12, dim=16, heads=2, layers=1, hidden=16, **settings)
    assert not says_something(transformer.Transformer(config).eval())


def test_in_bytes_what_is_too_wide_for_a_sum_is_left_to_the_plain_search() -> None:
    config = transformer.Config(vocab=12, dim=8, heads=2, layers=1, hidden=2**16 + 1)
    wide = transformer.Transformer(config).eval()
    assert says_something(wide)
    assert not says_something(wide, whole=True)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("keep", [1, 3])
@pytest.mark.parametrize("part", ["words", "blocks.0.feed_forward.wide", "blocks.0.attention.value"])
def test_a_weight_that_is_no_number_is_left_to_the_plain_search(part: str, keep: int, whole: bool) -> None:
    model = restless(gpt.GPT(gpt.Config(vocab=20, dim=16, heads=2, layers=1, context=32)))
    with torch.no_grad():
        model.get_submodule(part).weight[3, 5] = float("nan")
    assert quick(model, None, None, PROMPT, limit=6, keep=keep, whole=whole) is None


@pytest.mark.parametrize("how", [{}, {"keep": 3, "penalty": none(0)}], ids=["greedy", "beam"])
@pytest.mark.parametrize(("begin", "end"), [(0, 512), (0, 600), (512, 1024), (1024, 1100), (3, 1100)])
def test_words_that_are_impossible_change_no_other(begin: int, end: int, how: dict[str, Any]) -> None:
    """Also where the first logits that are looked at are all of them -inf."""
    config = transformer.Config(vocab=1100, dim=16, heads=2, layers=1, hidden=32, head_bias=True, tied="none")
    model = restless(transformer.Transformer(config))
    with torch.no_grad():
        model.head.bias[begin:end] = -math.inf  # type: ignore[index]
    given = SOURCE, None, PROMPT
    same(quick(model, *given, limit=6, **how), plain(model, *given, limit=6, **how))


def test_where_no_word_may_be_said_the_plain_search_knows_what_then() -> None:
    config = transformer.Config(vocab=12, dim=16, heads=2, layers=1, hidden=32)
    model = restless(transformer.Transformer(config))
    for keep in (1, 3):
        assert quick(model, SOURCE, None, PROMPT, limit=6, keep=keep, banned=tuple(range(11))) is not None
        assert quick(model, SOURCE, None, PROMPT, limit=6, keep=keep, banned=tuple(range(12))) is None


def test_room_for_more_than_anybody_says_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt.GPT(gpt.Config(vocab=12, dim=8, heads=2, layers=1, context=64)).eval()
    for room, done in ((2 * 3 * 8, True), (2 * 3 * 8 - 1, False)):
        monkeypatch.setattr(writer, "ROOM", room)
        assert (quick(model, None, None, PROMPT, limit=8, keep=3) is not None) is done
    monkeypatch.setattr(writer, "STEPS", 8)
    assert quick(model, None, None, PROMPT, limit=9) is None


def test_other_systems_are_left_to_the_plain_search() -> None:
    assert not says_something(seq2seq.Seq2Seq(seq2seq.Config(vocab=12, dim=8, embedding=8)).eval())


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_a_copy_of_the_model_has_the_same_answers(activation: str) -> None:
    model = restless(gpt.GPT(gpt.Config(vocab=20, dim=16, heads=2, layers=1, context=32, activation=activation)))
    given = asked(model, random.Random(0), 2)
    same(quick(copy.deepcopy(model), *given, limit=6), quick(model, *given, limit=6))


def test_an_activation_of_ones_own_is_left_to_the_plain_search(model: transformer.Transformer) -> None:
    model.decoder[0].feed_forward.activation = torch.tanh
    assert not says_something(model)


@pytest.mark.parametrize("whole", [False, True])
def test_a_copy_of_the_model_has_a_writer_of_its_own(model: transformer.Transformer, whole: bool) -> None:
    model.writer = Writer(model, whole=whole)
    given = SOURCE, None, PROMPT
    before = model.writer(*given, eos=END, limit=4)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.writer.model is twin
        assert twin.writer(*given, eos=END, limit=4) == before
        with torch.no_grad():
            twin.head.weight.neg_()
        assert twin.writer(*given, eos=END, limit=4) != before
    assert model.writer(*given, eos=END, limit=4) == before


def test_without_a_compiler_nobody_hears_of_it(model: transformer.Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    def unbuilt() -> None:
        raise Unbuilt("there is none; do without")

    build: Callable[[], None] = unbuilt
    monkeypatch.setattr("regard.fast.matrix.library", build)
    assert not says_something(model)


@pytest.mark.parametrize("limits", [[15_000], [6_000] * 17, [1] * 8 + [5_000] * 8, [5_000] * 8 + [1] * 8])
def test_ctrl_c_ends_a_search_at_once(limits: list[int]) -> None:
    """Of all threads that are at work, and the next one is as ever."""
    torch.manual_seed(0)
    model = restless(gpt.GPT(gpt.Config(vocab=50, dim=128, heads=2, layers=3, context=16_000)))
    prompt, before = torch.randint(50, (len(limits), 3)), threading.active_count()
    short = quick(model, None, None, prompt, limit=5)
    for late in (0.3, 0.0):
        killer, begun = threading.Timer(late, os.kill, (os.getpid(), signal.SIGINT)), time.monotonic()

        def search(killer: threading.Timer = killer) -> None:
            killer.start()
            quick(model, None, None, prompt, limit=torch.tensor(limits), shortest=max(limits))

        with pytest.raises(KeyboardInterrupt):
            search()
        assert time.monotonic() - begun < late + 2  # all of it takes half a minute
        killer.join()
    same(quick(model, None, None, prompt, limit=5), short)
    assert threading.active_count() == before


def test_ctrl_c_ends_the_reading_of_a_long_prompt() -> None:
    torch.manual_seed(0)
    model = restless(gpt.GPT(gpt.Config(vocab=50, dim=512, heads=8, layers=12, context=2_000)))
    prompt = torch.randint(50, (4, 1_900))
    killer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))

    def search() -> None:
        quick(model, None, None, prompt[:1, :2], limit=1)  # its matrices are laid out
        killer.start()
        quick(model, None, None, prompt, limit=1)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        search()
    assert killer.finished.is_set()
    assert time.monotonic() - begun < 3
    killer.join()


def test_only_the_main_thread_hears_of_signals() -> None:
    """Handlers run there; others search as ever."""
    with ThreadPoolExecutor(1) as aside:
        assert not aside.submit(writer._asked, []).result()
        assert writer._asked([])
        model = drawn(random.Random(1), writes_only=True)
        given = asked(model, random.Random(0), 3)
        same(aside.submit(quick, model, *given, limit=9).result(), plain(model, *given, limit=9))
