"""What a system reads, token by token: every mark, every segment, and where it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.layout import Layout, Reading, both_orders, choices, cut, for_decoder, for_encoder, lay_out, once
from regard.data.tokenizer import Marks, Tokenizer
from regard.errors import ConfigError

P, B, E, D, X = 0, 101, 102, 103, 104
MARKS = Marks(pad=P, begin=B, end=E, unknown=100, delimiter=D, extract=X)
A, H, C = [1, 2, 3], [4, 5], [6]

some = st.lists(st.integers(1, 9), max_size=12)


def test_an_encoder_reads_one_text_or_a_pair() -> None:
    assert for_encoder([A], MARKS, 99) == Reading([B, 1, 2, 3, E], [0, 0, 0, 0, 0], 0)
    assert for_encoder([A, H], MARKS, 99) == Reading([B, 1, 2, 3, E, 4, 5, E], [0, 0, 0, 0, 0, 1, 1, 1], 0)


def test_a_decoder_reads_one_text_or_a_pair() -> None:
    assert for_decoder([A], MARKS, 99) == Reading([B, 1, 2, 3, X], [0] * 5, 4)
    assert for_decoder([A, H], MARKS, 99) == Reading([B, 1, 2, 3, D, 4, 5, X], [0] * 8, 7)


@pytest.mark.parametrize(
    ("arrange", "texts", "wanted"),
    [
        (once, [A], [[B, 1, 2, 3, X]]),
        (once, [A, H], [[B, 1, 2, 3, D, 4, 5, X]]),
        (both_orders, [A, H], [[B, 1, 2, 3, D, 4, 5, X], [B, 4, 5, D, 1, 2, 3, X]]),
        (choices, [C, A, H], [[B, 6, D, 1, 2, 3, X], [B, 6, D, 4, 5, X]]),
    ],
)
def test_the_four_transformations_of_gpt(arrange, texts, wanted) -> None:  # type: ignore[no-untyped-def]
    readings = Layout(for_decoder, arrange, MARKS, 99)(texts)
    assert [reading.tokens for reading in readings] == wanted
    assert all(reading.tokens[reading.summary] == X for reading in readings)


def test_choices_of_an_encoder_are_pairs() -> None:
    first, second = Layout(for_encoder, choices, MARKS, 99)([C, A, H])
    assert (first.tokens, second.tokens) == ([B, 6, E, 1, 2, 3, E], [B, 6, E, 4, 5, E])
    assert second.segments == [0, 0, 0, 1, 1, 1]


def test_the_longer_text_is_cut_first_and_at_its_end() -> None:
    assert cut([[1] * 5, [2] * 2], 6) == [[1] * 4, [2] * 2]
    assert cut([[1] * 5, [2] * 4], 4) == [[1] * 2, [2] * 2]
    assert cut([[1, 2, 3], [4, 5, 6]], 5) == [[1, 2, 3], [4, 5]]
    assert for_encoder([A, H], MARKS, 6).tokens == [B, 1, 2, E, 4, E]
    assert for_decoder([A, H], MARKS, 6).tokens == [B, 1, 2, D, 4, X]


@given(some, some, st.integers(0, 24))
def test_what_is_cut_is_as_even_as_can_be(a: list[int], b: list[int], room: int) -> None:
    left, right = (list(text) for text in cut([a, b], room))
    assert (left, right) == (a[: len(left)], b[: len(right)])
    assert len(left) + len(right) == min(room, len(a) + len(b))
    if left != a:
        assert len(left) >= len(right)
    if right != b:
        assert len(right) >= len(left) - 1


@given(some, some, st.integers(4, 30))
def test_no_sequence_is_too_long_and_every_mark_stays(a: list[int], b: list[int], longest: int) -> None:
    for frame, marks in ((for_encoder, [B, E, E]), (for_decoder, [B, D, X])):
        for reading in Layout(frame, both_orders, MARKS, longest)([a, b]):
            assert len(reading.tokens) == len(reading.segments) == min(longest, len(a) + len(b) + 3)
            assert [token for token in reading.tokens if token >= B] == marks


def test_a_vocabulary_without_the_marks() -> None:
    with pytest.raises(
        ConfigError, match="this vocabulary has no mark <extract>, which a GPT needs to tell labels; add"
    ):
        for_decoder([A], Marks(0, 1, 2, 3), 9)
    with pytest.raises(ConfigError, match="no mark <delimiter>"):
        for_decoder([A, H], Marks(0, 1, 2, 3, extract=4), 9)


def test_texts_of_many_examples_find_their_places() -> None:
    tokenizer = Tokenizer.train(["a b c d"], kind="word", size=20)
    a, b, c = tokenizer.encode("a b c")
    found = lay_out(tokenizer, [("a b", "c"), ("c", " b ")], Layout(for_encoder, once, tokenizer.marks, 9))
    begin, end = tokenizer.marks.begin, tokenizer.marks.end
    assert [reading.tokens for (reading,) in found] == [[begin, a, b, end, c, end], [begin, c, end, b, end]]
