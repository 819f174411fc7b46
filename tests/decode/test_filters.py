from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.config import DecodeConfig
from regard.decode.filters import (
    NEVER,
    Filter,
    at_least,
    chain,
    limits,
    min_p,
    never,
    no_repeat,
    shapes,
    temperature,
    top_k,
    top_p,
)
from regard.errors import ConfigError

EOS = 0
NO_STORY = torch.empty(1, 0, dtype=torch.long)
lines = st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=8, unique=True)


def left(apply: Filter, logits: list[float], story: Tensor = NO_STORY) -> set[int]:
    """The words that may still be said; their logits must be what they were."""
    given = torch.tensor([logits], dtype=torch.float64)
    bent = apply(given, story)
    kept = bent > NEVER
    assert torch.equal(bent[kept], given[kept])
    assert torch.equal(given, torch.tensor([logits], dtype=torch.float64))  # and nobody's logits were written to
    return set(kept[0].nonzero().flatten().tolist())


def chances(logits: list[float]) -> list[float]:
    top = max(logits)
    parts = [math.exp(z - top) for z in logits]
    return [part / math.fsum(parts) for part in parts]


def ranked(logits: list[float]) -> list[int]:
    return sorted(range(len(logits)), key=lambda w: -logits[w])


@given(lines, st.integers(1, 10))
def test_top_k_leaves_the_k_likeliest(logits: list[float], k: int) -> None:
    assert left(top_k(k), logits) == set(ranked(logits)[:k])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("apply", [top_p(0.9), min_p(0.01), top_k(40)], ids=["top_p", "min_p", "top_k"])
def test_of_logits_in_16_bits_as_many_words_are_left_as_of_the_same_in_32(apply: Filter, kind: torch.dtype) -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(0)).to(kind)
    found, wanted = (apply(z, NO_STORY.expand(4, 0)) > NEVER for z in (logits, logits.float()))
    assert torch.equal(found, wanted)


@given(lines, st.floats(0.01, 0.99))
def test_top_p_leaves_the_likeliest_and_the_one_that_crosses(logits: list[float], p: float) -> None:
    wanted, total = set(), 0.0
    for word in ranked(logits):
        wanted.add(word)
        total += chances(logits)[word]
        if abs(total - p) < 1e-9:
            return  # too near to tell
        if total > p:
            break
    assert left(top_p(p), logits) == wanted


@given(lines, st.floats(0.01, 0.99))
def test_min_p_leaves_those_near_the_likeliest(logits: list[float], share: float) -> None:
    best = max(chances(logits))
    if any(abs(chance / best - share) < 1e-9 for chance in chances(logits)):
        return  # too near to tell
    assert left(min_p(share), logits) == {word for word, chance in enumerate(chances(logits)) if chance >= share * best}


@given(st.lists(st.integers(0, 3), max_size=9), st.integers(1, 4))
def test_no_repeat_bans_what_would_complete_an_old_n_gram(story: list[int], n: int) -> None:
    grams = {tuple(story[i : i + n]) for i in range(len(story) - n + 1)}
    wanted = {word for word in range(4) if tuple([*story, word][-n:]) not in grams or len(story) + 1 < n}
    assert left(no_repeat(n), [0.1, 0.2, 0.3, 0.4], torch.tensor([story], dtype=torch.long).view(1, -1)) == wanted


def test_rows_have_their_own_stories() -> None:
    logits, stories = torch.zeros(2, 3), torch.tensor([[1, 2, 1], [1, 1, 2]])
    assert (no_repeat(2)(logits, stories) > NEVER).tolist() == [[True, True, False], [True, True, True]]


def test_no_end_before_its_time() -> None:
    for said in range(4):
        story = torch.zeros(1, said, dtype=torch.long)
        assert left(at_least(2, EOS), [1.0, 2.0], story) == ({1} if said < 2 else {0, 1})


def test_never_is_never() -> None:
    assert left(never(0, 2), [3.0, 2.0, 1.0]) == {1}


def test_what_is_no_word_cannot_be_forbidden() -> None:
    with pytest.raises(ConfigError, match=r"^never\(2, -1\) came, but words are numbered from 0 on$"):
        never(2, -1)
    with pytest.raises(ConfigError, match=r"^never\(1, 3\) came, but there are 3 words$"):
        never(1, 3)(torch.zeros(1, 3), NO_STORY)


@given(lines, st.floats(0.1, 10))
def test_temperature_divides(logits: list[float], degree: float) -> None:
    given = torch.tensor([logits], dtype=torch.float64)
    torch.testing.assert_close(temperature(degree)(given, NO_STORY), given / degree)


def test_settings_become_filters_in_the_usual_order() -> None:
    how = DecodeConfig(temperature=0.5, top_k=4, top_p=0.8, min_p=0.1)
    logits = torch.randn(6, 9, dtype=torch.float64)
    by_hand = chain((temperature(0.5), top_k(4), top_p(0.8), min_p(0.1)), logits, NO_STORY)
    assert torch.equal(chain(shapes(how), logits, NO_STORY), by_hand)
    assert shapes(DecodeConfig()) == ()


def test_limits_are_what_every_search_obeys() -> None:
    logits, story = torch.zeros(1, 6), torch.tensor([[4, 5, 4]])
    how = DecodeConfig(shortest=5, block_ngram=2)
    banned = chain(limits(how, eos=EOS, specials=(1, 2)), logits, story) == NEVER
    assert banned[0].nonzero().flatten().tolist() == [EOS, 1, 2, 5]
    assert limits(DecodeConfig(), eos=EOS, specials=()) == ()


every_filter = pytest.mark.parametrize(
    "apply",
    [
        at_least(3, EOS),
        never(1),
        no_repeat(1),
        no_repeat(2),
        no_repeat(3),
        temperature(0.5),
        top_k(2),
        top_p(0.6),
        min_p(0.3),
    ],
)


@every_filter
@given(st.lists(st.lists(st.integers(0, 3), max_size=7), min_size=1, max_size=4))
def test_neighbours_with_longer_stories_change_nothing(apply: Filter, said: list[list[int]]) -> None:
    """A story that is shorter than others has -1 before it."""
    longest = max(map(len, said))
    padded = torch.tensor([[-1] * (longest - len(story)) + story for story in said], dtype=torch.long)
    logits = torch.linspace(0.1, 1.7, 4 * len(said), dtype=torch.float64).sin().view(-1, 4)
    together = apply(logits, padded.view(len(said), longest))
    for row, story in enumerate(said):
        one = torch.tensor(story, dtype=torch.long).view(1, -1)
        assert torch.equal(together[row : row + 1], apply(logits[row : row + 1], one))


def test_asked_for_twice_a_filter_is_the_same() -> None:
    """So rows that want the same can be filtered at once."""
    assert never(3, 4) is never(3, 4)
    assert at_least(2, EOS) is not at_least(3, EOS)
