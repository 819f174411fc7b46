"""What is hidden, over a million tokens: how many, which, and as what."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from regard.data.masking import Masking, chance, later_pieces
from regard.data.tokenizer import Marks
from regard.errors import ConfigError

MARKS = Marks(pad=0, begin=1, end=2, unknown=3, mask=4)
VOCAB = 1000


@cache
def sequences(rows: int = 8000, longest: int = 160) -> np.ndarray:
    """begin A end B end, padded: more than a million tokens."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, VOCAB, (rows, longest))
    lengths = np.where(draw.random(rows) < 0.8, longest, draw.integers(5, longest, rows))
    tokens[np.arange(rows), draw.integers(2, lengths - 2)] = MARKS.end
    tokens[np.arange(rows), lengths - 1] = MARKS.end
    tokens[:, 0] = MARKS.begin
    tokens[np.arange(longest) >= lengths[:, None]] = MARKS.pad
    return tokens


def lengths_of(tokens: np.ndarray) -> np.ndarray:
    return (tokens != MARKS.pad).sum(1)


def within(found: int, count: int, share: float) -> bool:
    """Three standard deviations."""
    return abs(found - count * share) <= 3 * (count * share * (1 - share)) ** 0.5


def test_statistics_over_a_million_tokens() -> None:
    tokens = sequences()
    assert lengths_of(tokens).sum() > 1_000_000
    shown, chosen = Masking(MARKS, VOCAB).hide(tokens, np.arange(len(tokens)), "key")
    wanted = [max(1, round(0.15 * length)) for length in lengths_of(tokens).tolist()]
    assert chosen.sum(1).tolist() == wanted
    assert not np.isin(tokens[chosen], (MARKS.pad, MARKS.begin, MARKS.end)).any()
    assert (shown == tokens)[~chosen].all()
    before, after = tokens[chosen], shown[chosen]
    masked, count = after == MARKS.mask, len(before)
    assert within(masked.sum(), count, 0.8 + 0.1 / VOCAB)
    assert within((after == before).sum(), count, 0.1 + 0.1 / VOCAB)
    others = after[~masked & (after != before)]
    assert within(len(others), count, 0.1 * (1 - 2 / VOCAB))
    drawn = np.bincount(others, minlength=VOCAB)
    assert drawn[list({*range(VOCAB)} - {MARKS.mask})].min() > 0  # the marks too: the whole vocabulary
    assert abs(drawn.std() / drawn.mean() ** 0.5 - 1) < 0.2


def test_every_position_is_chosen_as_often() -> None:
    full = sequences()[lengths_of(sequences()) == 160]
    chosen = Masking(MARKS, VOCAB).choose(full, np.arange(len(full)), "key")
    text = ~np.isin(full, (MARKS.begin, MARKS.end))
    share = 24 / 157
    found, count = chosen.sum(0)[1:-1], text.sum(0)[1:-1]
    deviation = (found - count * share) / np.sqrt(count * share * (1 - share))
    assert np.abs(deviation).max() < 4.5
    assert abs(deviation.std() - 1) < 0.25


@pytest.mark.parametrize(
    ("length", "most", "wanted"), [(128, 0, 19), (512, 0, 77), (512, 20, 20), (3, 0, 1), (10, 0, 2), (30, 0, 4)]
)
def test_how_many_are_chosen(length: int, most: int, wanted: int) -> None:
    """As Python rounds: half of them to the even number."""
    assert Masking(MARKS, VOCAB, most=most).count(np.array([length])).tolist() == [wanted]


def test_never_more_than_there_is_text() -> None:
    tokens = np.array([[1, 7, 8, 2, 0], [1, 2, 2, 0, 0]])
    shown, chosen = Masking(MARKS, VOCAB, share=0.9).hide(tokens, np.arange(2), "key")
    assert chosen.tolist() == [[False, True, True, False, False], [False] * 5]
    assert shown[1].tolist() == tokens[1].tolist()


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_hidden_does_not_depend_on_the_batch(whole: bool) -> None:
    later = np.arange(VOCAB) % 3 == 0 if whole else None
    masking, tokens, numbers = Masking(MARKS, VOCAB, later=later), sequences()[:50], np.arange(100, 150)
    shown, chosen = masking.hide(tokens, numbers, "0 128 3")
    for row in (0, 17, 49):
        alone = tokens[row : row + 1, : lengths_of(tokens)[row]]
        one, its = masking.hide(alone, numbers[row : row + 1], "0 128 3")
        assert one[0].tolist() == shown[row, : one.shape[1]].tolist()
        assert its[0].tolist() == chosen[row, : one.shape[1]].tolist()
    other, _ = masking.hide(tokens, numbers, "0 128 4")
    assert (other != shown).any(1).all()
    assert (tokens == sequences()[:50]).all()


def words_of(row: np.ndarray, later: np.ndarray) -> list[list[int]]:
    """Positions of each word, by hand."""
    words: list[list[int]] = []
    for at, token in enumerate(row.tolist()):
        if token in (MARKS.pad, MARKS.begin, MARKS.end):
            continue
        if later[token] and words and words[-1][-1] == at - 1:
            words[-1].append(at)
        else:
            words.append([at])
    return words


def test_whole_words_are_hidden_whole_and_within_the_count() -> None:
    later = np.arange(VOCAB) % 2 == 0
    tokens = sequences()[:400]
    masking = Masking(MARKS, VOCAB, later=later)
    chosen = masking.choose(tokens, np.arange(400), "key")
    wanted = masking.count(lengths_of(tokens))
    assert (chosen.sum(1) <= wanted).all()
    for row, line in enumerate(chosen):
        words = words_of(tokens[row], later)
        taken = [word for word in words if line[word].all()]
        left = [len(word) for word in words if not line[word].any()]
        if min(map(len, words)) > wanted[row]:
            assert line.sum() == wanted[row]  # no word finds room, so pieces stand for them
            continue
        assert len(taken) + len(left) == len(words)
        assert min(left, default=99) > wanted[row] - line.sum()  # nothing that is left would have found room


def test_all_words_are_equally_likely_to_be_first() -> None:
    """Two words of three and one piece where one token is wanted of five: only the short one fits."""
    later = np.zeros(VOCAB, bool)
    later[[11, 12]] = True
    tokens = np.tile(np.array([1, 10, 11, 12, 20, 21, 2]), (3000, 1))
    chosen = Masking(MARKS, VOCAB, share=0.15, later=later).choose(tokens, np.arange(3000), "key")
    assert chosen.sum(1).tolist() == [1] * 3000
    assert not chosen[:, 1:4].any()
    assert within(chosen[:, 4].sum(), 3000, 0.5)


def test_later_pieces_of_each_kind_of_vocabulary() -> None:
    assert later_pieces(["<pad>", "un", "##able", "#"]).tolist() == [False, False, True, False]
    assert later_pieces(["▁un", "able", "▁", "."]).tolist() == [False, True, False, True]
    assert not later_pieces(["the", "cat"]).any()


def test_chance_is_even_and_never_the_same_twice_in_a_sequence() -> None:
    values = chance("key", np.arange(200)[:, None], np.arange(512))
    assert all(len(np.unique(row)) == 512 for row in values)
    bits = (values[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    ones = bits.reshape(-1, 64).sum(0, dtype=np.int64)
    assert (np.abs(ones - values.size / 2) < 4.5 * values.size**0.5 / 2).all()


def test_a_vocabulary_without_a_mask_is_refused() -> None:
    with pytest.raises(ConfigError, match="the vocabulary has no mask to hide a token behind; train one that has"):
        Masking(Marks(0, 1, 2, 3), VOCAB).hide(sequences()[:2], np.arange(2), "key")
