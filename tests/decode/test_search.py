from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.core.state import State
from regard.decode import Coverage, Hypothesis, beam, greedy, sample
from regard.decode.filters import at_least, min_p, never, no_repeat, temperature, top_k, top_p
from regard.decode.search import PENALTIES
from regard.errors import ConfigError, DataError
from regard.models.transformer import Config, Transformer

from .toy import BOS, EOS, KEYS, VOCAB, Toy

# The formulas, written out again.
FORMULAS: dict[str, Callable[[int], float]] = {
    "wu": lambda n: ((5 + n) / 6) ** 0.6,
    "average": lambda n: n**0.6,
    "none": lambda n: 1.0,
}
each_penalty = pytest.mark.parametrize("name", FORMULAS)
seeds = st.integers(0, 10_000)


def brute_force(
    toy: Toy, sentence: int, limit: int, formula: Callable[[int], float]
) -> list[tuple[tuple[int, ...], float]]:
    """Every answer there is, those that end by themselves first, best first."""
    found = []
    for words, finished in toy.every_answer(limit):
        score = toy.logprob(sentence, words, finished) / formula(len(words) + finished)
        found.append((not finished, -score, words))
    return [(words, -score) for _, score, words in sorted(found)]


@each_penalty
def test_a_wide_beam_is_brute_force(name: str) -> None:
    toy = Toy(2)
    found = beam(
        toy.step, toy.start(), toy.prompt(), eos=EOS, limit=4, keep=400, expand=VOCAB, penalty=PENALTIES[name](0.6)
    )
    for sentence, hypotheses in enumerate(found):
        wanted = brute_force(toy, sentence, 4, FORMULAS[name])
        assert [h.tokens for h in hypotheses] == [words for words, _ in wanted]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score in wanted], abs=1e-9)


def narrow_by_hand(
    toy: Toy, sentence: int, limit: int, keep: int, expand: int, formula: Callable[[int], float]
) -> list[tuple[tuple[int, ...], bool]]:
    """Beam search for one sentence, in plain lists."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for _ in range(limit):
        candidates = []
        for total, words in live:
            chances = toy.logprobs(sentence, words)
            ranked = sorted(range(toy.vocab), key=lambda w: -chances[w])[: expand + 1]
            tried = [w for w in ranked if w != EOS][:expand] + [w for w in ranked if w == EOS]
            candidates += [(total + chances[w], (*words, w)) for w in tried]
        candidates.sort(reverse=True)
        done += [(total / formula(len(words)), words[:-1]) for total, words in candidates[:keep] if words[-1] == EOS]
        live = [(total, words) for total, words in candidates if words[-1] != EOS][:keep]
        kept = sorted((score for score, _ in done), reverse=True)[:keep]
        if not live or (len(kept) == keep and live[0][0] / formula(len(live[0][1])) <= kept[-1]):
            break
    else:
        missing = max(0, keep - len(done))
        cut = sorted(((total / formula(len(words)), words) for total, words in live[:missing]), reverse=True)
        best = sorted(done, reverse=True)[:keep]
        return [(words, True) for _, words in best] + [(words, False) for _, words in cut]
    return [(words, True) for _, words in sorted(done, reverse=True)[:keep]]


@each_penalty
@settings(max_examples=25)
@given(seed=seeds, keep=st.integers(1, 6), expand=st.integers(1, 6), limit=st.integers(1, 7))
def test_expanding_and_keeping_are_two_numbers(name: str, seed: int, keep: int, expand: int, limit: int) -> None:
    toy = Toy(2, seed)
    how: dict[str, Any] = {"limit": limit, "keep": keep, "expand": expand, "penalty": PENALTIES[name](0.6)}
    found = beam(toy.step, toy.start(), toy.prompt(), eos=EOS, **how)
    for sentence, hypotheses in enumerate(found):
        wanted = narrow_by_hand(toy, sentence, limit, keep, expand, FORMULAS[name])
        assert [(h.tokens, h.finished) for h in hypotheses] == wanted


@each_penalty
@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_a_model_that_is_sure_is_believed(name: str, keep: int) -> None:
    """Whenever it says a word, an end is the next likeliest thing, and far behind: those ends are no reason to stop."""
    answer = (3, 4, 2, 3, 4, 2, 3, 4, 2)

    def step(tokens: Tensor, state: State) -> tuple[Tensor, State]:
        past = torch.cat([state.past, tokens], 1)
        logits = torch.zeros(len(past), VOCAB, dtype=torch.float64)
        logits[:, EOS] = 4.0
        logits[:, (*answer, EOS)[min(past.shape[1] - 1, len(answer))]] = 12.0
        return logits, State(None, past, past.shape[1])

    start = State(None, torch.empty(1, 0, dtype=torch.long))
    (found,) = beam(step, start, torch.full((1, 1), BOS), eos=EOS, limit=20, keep=keep, penalty=PENALTIES[name](1.0))
    assert (found[0].tokens, found[0].finished) == (answer, True)
    assert len(found) == keep


@settings(max_examples=40)
@given(seed=seeds, limit=st.integers(1, 8))
def test_a_beam_of_one_is_greedy(seed: int, limit: int) -> None:
    toy = Toy(3, seed)
    plain = greedy(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=limit)
    beams = beam(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=limit, keep=1)
    for one, (other,) in zip(plain, beams, strict=True):
        assert (one.tokens, one.finished, one.rows) == (other.tokens, other.finished, other.rows)
        assert one.logprob == pytest.approx(other.logprob, abs=1e-12)


@each_penalty
@settings(max_examples=20)
@given(seed=seeds, keep=st.integers(1, 7), limit=st.integers(1, 8))
def test_a_score_is_the_log_probability_over_the_penalty(name: str, seed: int, keep: int, limit: int) -> None:
    toy = Toy(2, seed)
    found = beam(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=limit, keep=keep, penalty=PENALTIES[name](0.6))
    for sentence, hypotheses in enumerate(found):
        assert 1 <= len(hypotheses) <= keep
        assert len({h.tokens for h in hypotheses}) == len(hypotheses)  # never twice the same
        ranks = [(h.finished, h.score) for h in hypotheses]
        assert ranks == sorted(ranks, reverse=True)
        for h in hypotheses:
            assert h.logprob == pytest.approx(toy.logprob(sentence, h.tokens, h.finished), abs=1e-9)
            assert h.score == pytest.approx(h.logprob / FORMULAS[name](len(h.tokens) + h.finished), abs=1e-12)
            assert len(h.rows) == len(h.tokens) + h.finished
            assert EOS not in h.tokens


def test_penalties() -> None:
    assert PENALTIES["wu"](0.6)(20) == pytest.approx(2.3544, abs=5e-5)
    assert PENALTIES["wu"](0.0)(20) == PENALTIES["none"](0.6)(20) == 1.0
    assert PENALTIES["average"](1.0)(20) == 20.0


# ------------------------------------------------------------------ limits, ends, prefixes


def search(name: str, step: Any, state: Any, prompt: Tensor, **how: Any) -> list[Hypothesis]:
    """The best answer of any search."""
    if name == "greedy":
        return greedy(step, state, prompt, eos=EOS, **how)
    if name == "sample":
        return sample(step, state, prompt, eos=EOS, seeds=how.pop("seeds", range(len(prompt))), **how)
    return [best[0] for best in beam(step, state, prompt, eos=EOS, keep=3, **how)]


each_search = pytest.mark.parametrize("name", ["greedy", "sample", "beam"])


def says_232(tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """2, 3, 2, and then the end."""
    words = [2, 3, 2]
    logits = torch.zeros(len(tokens), VOCAB)
    logits[:, words[state.length] if state.length < 3 else EOS] = 50.0
    return logits, State(length=state.length + 1)


@pytest.mark.parametrize(("limit", "said"), [(1, (2,)), (3, (2, 3, 2)), (4, (2, 3, 2)), (9, (2, 3, 2))])
def test_the_end_mark_may_be_the_last_token_within_the_limit(limit: int, said: tuple[int, ...]) -> None:
    prompt = torch.tensor([[BOS]])
    (plain,) = greedy(says_232, State(), prompt, eos=EOS, limit=limit)
    (drawn,) = sample(says_232, State(), prompt, eos=EOS, limit=limit, seeds=[0])
    ((beamed,),) = beam(says_232, State(), prompt, eos=EOS, limit=limit, keep=1)
    for h in (plain, drawn, beamed):
        assert (h.tokens, h.finished) == (said, limit >= 4)


@each_search
@given(seed=seeds)
@settings(max_examples=15)
def test_each_row_has_its_own_limit(name: str, seed: int) -> None:
    toy = Toy(4, seed)
    limits = [2, 6, 1, 4]
    together = search(name, toy.step, toy.start(), toy.prompt(), limit=torch.tensor(limits))
    for row, limit in enumerate(limits):
        alone = search(
            name,
            toy.step,
            toy.start([row]),
            toy.prompt(1),
            limit=limit,
            **({"seeds": [row]} if name == "sample" else {}),
        )
        assert together[row].tokens == alone[0].tokens
        assert len(together[row].tokens) <= limit - together[row].finished


PREFIXES: list[list[int]] = [[3, 3], [], [2, 4, 1], [1]]


@each_search
@given(seed=seeds)
@settings(max_examples=15)
def test_a_forced_prefix_is_said_and_then_the_search_goes_on(name: str, seed: int) -> None:
    toy = Toy(4, seed)
    forced = search(name, toy.step, toy.start(), toy.prompt(), limit=7, prefixes=PREFIXES)
    for row, prefix in enumerate(PREFIXES):
        h = forced[row]
        assert list(h.tokens[: len(prefix)]) == prefix
        assert h.logprob == pytest.approx(toy.logprob(row, h.tokens, h.finished), abs=1e-9)
        if name == "greedy":
            prompt = torch.tensor([[BOS, *prefix]])
            (free,) = greedy(toy.step, toy.start([row]), prompt, eos=EOS, limit=7 - len(prefix))
            assert h.tokens == (*prefix, *free.tokens)


@each_search
def test_a_forced_prefix_wins_over_filters(name: str) -> None:
    """Whoever forces a word means it, even one that the search by itself would not say."""
    toy = Toy(2)
    prefixes = [[3, 2, 3, 2], [4]]
    found = search(
        name, toy.step, toy.start(), toy.prompt(), limit=8, prefixes=prefixes, filters=(no_repeat(2), never(4))
    )
    for row, prefix in enumerate(prefixes):
        h = found[row]
        assert list(h.tokens[: len(prefix)]) == prefix
        assert h.logprob == pytest.approx(toy.logprob(row, h.tokens, h.finished), abs=1e-9)
        assert 4 not in h.tokens[len(prefix) :]


@each_search
def test_a_prefix_over_the_limit_is_cut(name: str) -> None:
    toy = Toy(1)
    (h,) = search(name, toy.step, toy.start(), toy.prompt(), limit=2, prefixes=[[3, 3, 3]])
    assert (h.tokens, h.finished) == ((3, 3), False)


@each_search
@given(seed=seeds, n=st.integers(1, 3))
@settings(max_examples=15)
def test_no_n_gram_is_said_twice(name: str, seed: int, n: int) -> None:
    toy = Toy(3, seed)
    for h in search(name, toy.step, toy.start(), toy.prompt(), limit=12, filters=(no_repeat(n),)):
        grams = [h.tokens[i : i + n] for i in range(len(h.tokens) - n + 1)]
        assert len(set(grams)) == len(grams)


@each_search
@given(seed=seeds, least=st.integers(0, 5))
@settings(max_examples=15)
def test_answers_are_as_long_as_was_asked(name: str, seed: int, least: int) -> None:
    toy = Toy(3, seed)
    for h in search(name, toy.step, toy.start(), toy.prompt(), limit=9, filters=(at_least(least, EOS), never(BOS))):
        assert len(h.tokens) >= least
        assert BOS not in h.tokens
        assert len(h.tokens) <= 9 - h.finished


def test_filters_do_not_change_the_log_probability() -> None:
    """What a hypothesis is worth is the model's own word, whatever was forbidden."""
    toy = Toy(1)
    best, *_ = beam(
        toy.step, toy.start(), toy.prompt(), eos=EOS, limit=6, keep=3, filters=(never(2), at_least(3, EOS))
    )[0]
    assert best.logprob == pytest.approx(toy.logprob(0, best.tokens, best.finished), abs=1e-9)


# ------------------------------------------------------------------ rows of a batch never meet


@each_search
@given(seed=seeds, order=st.permutations(range(5)))
@settings(max_examples=20)
def test_batch_size_and_order_do_not_change_an_answer(name: str, seed: int, order: Sequence[int]) -> None:
    toy = Toy(5, seed)

    def dice(rows: Sequence[int]) -> dict[str, Any]:
        return {"seeds": [100 + row for row in rows]} if name == "sample" else {}

    together = search(name, toy.step, toy.start(), toy.prompt(), limit=8, **dice(range(5)))
    turned = search(name, toy.step, toy.start(order), toy.prompt(), limit=8, **dice(order))
    for place, row in enumerate(order):
        (alone,) = search(name, toy.step, toy.start([row]), toy.prompt(1), limit=8, **dice([row]))
        for other in (turned[place], alone):
            assert (together[row].tokens, together[row].finished) == (other.tokens, other.finished)
            assert together[row].score == pytest.approx(other.score, abs=1e-12)


def transformer() -> Transformer:
    model = Transformer(Config(vocab=9, dim=8, heads=2, layers=2, hidden=16, dropout=0.0)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


SOURCE = torch.tensor([[4, 5, 6, 7, 8, 4], [8, 7, 6, 0, 0, 0], [5, 5, 0, 0, 0, 0]])
REAL = SOURCE > 0


@each_search
def test_padding_does_not_change_an_answer(name: str) -> None:
    model = transformer()
    how: dict[str, Any] = {"seeds": [5, 6, 7]} if name == "sample" else {}
    with torch.inference_mode():
        together = search(
            name, model.step, model.start(SOURCE, REAL), torch.ones(3, 1, dtype=torch.long), limit=9, **how
        )
        for row, length in enumerate(REAL.sum(1).tolist()):
            own: dict[str, Any] = {"seeds": [5 + row]} if name == "sample" else {}
            state = model.start(SOURCE[row : row + 1, :length], REAL[row : row + 1, :length])
            (alone,) = search(name, model.step, state, torch.ones(1, 1, dtype=torch.long), limit=9, **own)
            assert alone.tokens == together[row].tokens
            assert alone.score == pytest.approx(together[row].score, abs=1e-9)


def test_finished_rows_leave_the_batch() -> None:
    toy = Toy(20, 3)
    found = greedy(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=10)
    lengths = [len(h.rows) for h in found]
    assert len(set(lengths)) > 2
    assert toy.rows == [sum(length > t for length in lengths) for t in range(max(lengths))]


def test_finished_sentences_leave_the_beam() -> None:
    toy = Toy(12, 3)
    alone = []
    for row in range(12):
        toy.rows.clear()
        beam(toy.step, toy.start([row]), toy.prompt(1), eos=EOS, limit=10, keep=3)
        alone.append(len(toy.rows))
    toy.rows.clear()
    beam(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=10, keep=3)
    assert len(set(alone)) > 2
    assert toy.rows == [12] + [3 * sum(steps > t for steps in alone) for t in range(1, max(alone))]


# ------------------------------------------------------------------ sampling


def test_samples_follow_the_distribution() -> None:
    """Within five standard deviations of a binomial, for every word."""
    toy, draws = Toy(1, 1), 5000
    state, prompt = toy.start([0] * draws), toy.prompt(draws)
    found = sample(toy.step, state, prompt, eos=EOS, limit=1, seeds=range(draws))
    counts = [0] * VOCAB
    for h in found:
        counts[h.tokens[0] if h.tokens else EOS] += 1
    for count, logprob in zip(counts, toy.logprobs(0, ()), strict=True):
        p = math.exp(logprob)
        assert abs(count - draws * p) < 5 * math.sqrt(draws * p * (1 - p))


def test_a_seed_is_an_answer() -> None:
    toy = Toy(1)

    def draw(*seeds: int) -> list[tuple[int, ...]]:
        rows = len(seeds)
        return [
            h.tokens for h in sample(toy.step, toy.start([0] * rows), toy.prompt(rows), eos=EOS, limit=8, seeds=seeds)
        ]

    many = draw(*range(20))
    assert many == draw(*range(20))
    assert len(set(many)) > 5
    assert draw(7, 7, 3) == [many[7], many[7], many[3]]


def test_what_was_filtered_is_never_drawn() -> None:
    toy, draws = Toy(1, 2), 500
    allowed = sorted(range(VOCAB), key=lambda w: -toy.logprobs(0, ())[w])[:2]
    state, prompt, filters = toy.start([0] * draws), toy.prompt(draws), (temperature(9.0), top_k(2))
    found = sample(toy.step, state, prompt, eos=EOS, limit=1, seeds=range(draws), filters=filters)
    assert {h.tokens[0] if h.tokens else EOS for h in found} == set(allowed)


def test_a_cold_sample_is_greedy() -> None:
    toy = Toy(6, 4)
    cold = sample(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=8, seeds=range(6), filters=(temperature(1e-4),))
    plain = greedy(toy.step, toy.start(), toy.prompt(), eos=EOS, limit=8)
    assert [h.tokens for h in cold] == [h.tokens for h in plain]
    assert [h.logprob for h in cold] == pytest.approx(
        [h.logprob for h in plain]
    )  # of the model, not of the filtered one


# ------------------------------------------------------------------ what the winners looked at


def gazes(toy: Toy, words: Sequence[int]) -> Tensor:
    """(steps, KEYS) of an answer that is said again."""
    twin = toy.twin()
    looked = []
    for t in range(len(words) + 1):
        twin.step(torch.tensor([[BOS, *words[:t]]]), toy.start([0]))
        looked.append(twin.looked[0])
    return torch.stack(looked)


@pytest.mark.parametrize("weight", [0.3, 4.0])
def test_coverage_rewards_reading_all_of_the_source(weight: float) -> None:
    toy = Toy(3, 5)
    real = torch.arange(KEYS) < torch.tensor([[4], [2], [3]])
    how = {"eos": EOS, "limit": 6, "keep": 4, "penalty": PENALTIES["wu"](0.6)}
    coverage = Coverage(weight, lambda: toy.looked, real)
    covered = beam(toy.step, toy.start(), toy.prompt(), coverage=coverage, **how)  # type: ignore[arg-type]
    for sentence, hypotheses in enumerate(covered):
        for h in (h for h in hypotheses if h.finished):
            read = gazes(toy, h.tokens).sum(0)[real[sentence]]
            bonus = weight * sum(math.log(min(float(r), 1.0)) for r in read)
            assert h.score == pytest.approx(h.logprob / FORMULAS["wu"](len(h.tokens) + 1) + bonus, abs=1e-5)
        finished = [h.score for h in hypotheses if h.finished]
        assert finished == sorted(finished, reverse=True)


def test_strong_coverage_prefers_another_answer() -> None:
    toy = Toy(8, 5)
    how = {"eos": EOS, "limit": 6, "keep": 4}
    plain = beam(toy.step, toy.start(), toy.prompt(), **how)  # type: ignore[arg-type]
    coverage = Coverage(5.0, lambda: toy.looked, torch.ones(8, KEYS, dtype=torch.bool))
    covered = beam(toy.step, toy.start(), toy.prompt(), coverage=coverage, **how)  # type: ignore[arg-type]
    assert [best[0].tokens for best in plain] != [best[0].tokens for best in covered]


@pytest.mark.parametrize("name", ["greedy", "beam"])
@torch.inference_mode()
def test_ancestry_leads_to_what_the_winner_looked_at(name: str) -> None:
    """Rows followed through the watched batch are the rows of the same answer read in one pass."""
    model = transformer()
    prompt = torch.ones(3, 1, dtype=torch.long)
    how: dict[str, Any] = {"eos": 2, "limit": torch.tensor([3, 9, 6])}
    with regard.watch(model, "decoder.*") as seen:
        if name == "greedy":
            answers = [[h] for h in greedy(model.step, model.start(SOURCE, REAL), prompt, **how)]
        else:
            answers = beam(model.step, model.start(SOURCE, REAL), prompt, keep=4, **how)
    assert len({len(h.rows) for h in itertools.chain(*answers)}) > 1
    for sentence, hypotheses in enumerate(answers):
        source, real = SOURCE[sentence : sentence + 1], REAL[sentence : sentence + 1]
        for h in hypotheses:
            with regard.watch(model, "decoder.*") as wanted:
                model(source, real, torch.tensor([[1, *h.tokens]])[:, : len(h.rows)])
            for t, row in enumerate(h.rows):
                for attention, calls in seen.items():
                    line = wanted[attention][0][0, :, t]
                    line = line if attention.endswith("cross") else line[:, : t + 1]
                    torch.testing.assert_close(calls[t][row, :, 0], line)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "keep": ({"keep": 0}, "keep=0 came, but a hypothesis is kept at least; write keep=1 or more"),
    "expand": ({"keep": 2, "expand": 0}, "expand=0 came, but .*; write expand=1 or more"),
    "limit": ({"limit": 0}, "limit=0 came, but an answer has a word at least; write 1 or more"),
    "limits": ({"limit": torch.tensor([3, -1])}, "limit=-1 came, but .*; write 1 or more"),
    "too few limits": ({"limit": torch.tensor([3])}, "1 limits came for 2 rows of the prompt; give each row one"),
    "seeds": ({"seeds": [1]}, "1 seeds came for 2 rows of the prompt; give each row one"),
    "prefixes": ({"prefixes": [[1], [1], []]}, "3 prefixes came for 2 rows of the prompt; give each row one"),
    "prefix": ({"prefixes": [[3], [VOCAB]]}, f"a prefix with the word {VOCAB} came, but there are {VOCAB}, from 0 on"),
    "no word": ({"prefixes": [[], [-2]]}, "a prefix with the word -2 came, but words are numbered from 0 on"),
    "no prompt": ({"prompt": torch.ones(2, 0, dtype=torch.long)}, "an empty prompt came, .*; write the mark that .*"),
    "flat prompt": ({"prompt": torch.ones(5, dtype=torch.long)}, r"a prompt of shape .* came, .*; write prompt.*"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_search_can_do_is_refused_in_a_sentence(what: str) -> None:
    how, sentence = REFUSED[what]
    toy = Toy(2)
    given = {"prompt": toy.prompt(), "eos": EOS, "limit": 4} | how
    prompt = given.pop("prompt")
    searches = [beam] if "keep" in how else [sample] if "seeds" in how else [greedy, sample, beam]
    for search in searches:
        asked = {
            **({"keep": 2} if search is beam else {"seeds": range(len(prompt))} if search is sample else {}),
            **given,
        }
        with pytest.raises((ConfigError, DataError), match=f"^{sentence}$"):
            search(toy.step, toy.start(), prompt, **asked)


@pytest.mark.parametrize("way", [temperature, top_p, top_k, no_repeat, min_p])
def test_filters_that_leave_nothing_are_refused_in_a_sentence(way: Callable[[Any], object]) -> None:
    wrong = -0.5 if way is min_p else 0
    with pytest.raises(ConfigError, match=rf"^{way.__name__}\({wrong}\) came, but .*; .*$"):
        way(wrong)
