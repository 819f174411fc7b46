"""Random mappings: the answer follows from the demonstrations and from nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from regard.data.maps import ASKED, KEYS, VALUES, WORDS, Split, best_accuracy, maps, questions, split_of

SPLITS: tuple[Split, ...] = ("train", "valid", "test")


def shown(words: Iterable[str]) -> dict[str, str]:
    """What demonstrations say."""
    return {word[0]: word[1] for word in words if len(word) == 2}


@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_follows_from_the_demonstrations_of_its_own_line(split: Split) -> None:
    for line in maps(split, 300):
        words = line.split(" ")
        questions = words[-2 * ASKED :]
        known = shown(words[: -2 * ASKED])
        assert len(known) == len(words) - 2 * ASKED, "demonstrations are of different keys"
        assert all(known[key] == value for key, value in zip(questions[::2], questions[1::2], strict=True))


def test_nothing_can_be_known_before_a_line_begins() -> None:
    lines = [line.split(" ") for line in maps("train", 3000)]
    values = Counter(shown(line).get("a") for line in lines)
    assert set(values) == {*VALUES, None}
    del values[None]
    assert max(values.values()) < 1.4 * min(values.values())
    assert len({len(line) for line in lines}) == len(KEYS), "any number of demonstrations"
    assert {word for line in lines for word in line} == set(WORDS.split(" "))


def test_no_mapping_is_in_two_splits() -> None:
    for split in SPLITS:
        whole = [known for line in maps(split, 600) if len(known := shown(line.split(" "))) == len(KEYS)]
        assert len(whole) > 30
        assert all(split_of("".join(known[key] for key in KEYS)) == split for known in whole)


def test_lines_and_questions_are_a_function_of_seed_and_index() -> None:
    assert list(maps("train", 20, seed=7)) == list(maps("train", 60, seed=7))[:20]
    assert list(maps("train", 20, seed=7)) != list(maps("train", 20, seed=8))
    assert list(questions("test", 20, shots=3)) == list(questions("test", 60, shots=3))[:20]


@pytest.mark.parametrize("shots", range(len(KEYS) + 1))
def test_what_was_shown_answers_as_many_questions_as_it_can(shots: int) -> None:
    hits = 0
    for question, answer in questions("valid", 2000, shots=shots):
        *demonstrations, asked = question.split(" ")
        known = shown(demonstrations)
        assert len(known) == shots
        hits += known.get(asked, VALUES[0]) == answer
    assert hits / 20 == pytest.approx(best_accuracy(shots), abs=3)


def test_a_question_may_be_kept_to_what_was_shown() -> None:
    for question, answer in questions("valid", 300, shots=3, among="shown"):
        *demonstrations, asked = question.split(" ")
        assert shown(demonstrations)[asked] == answer
    assert best_accuracy(3, "shown") == 100


def test_every_key_is_asked_for_alike() -> None:
    asked = Counter(question.rpartition(" ")[2] for question, _ in questions("train", 4000, shots=2))
    assert set(asked) == set(KEYS)
    assert max(asked.values()) < 1.3 * min(asked.values())
