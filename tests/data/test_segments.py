"""Sequences are made of whole documents by the rules of the paper, and come in an order that needs no memory."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from regard.data.documents import Documents, Sentence
from regard.data.segments import RECORD, How, Layouts, _walk, check
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError

WORDS = [f"w{number}" for number in range(200)]


def corpus(folder: Path, documents: int = 30, *, longest: int = 12, seed: int = 0) -> tuple[Documents, Tokenizer]:
    """Documents of one to twenty sentences."""
    chance = Random(seed)
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="word", size=300, marks=["mask"])
    sentences = [
        Sentence(0, " ".join(chance.choices(WORDS, k=chance.randint(1, longest))), first=number == 0)
        for _ in range(documents)
        for number in range(chance.randint(1, 20))
    ]
    return Documents.build(folder, sentences, tokenizer, bad=BadLines()), tokenizer


def owner(documents: Documents) -> tuple[np.ndarray, np.ndarray]:
    """The sentence and the document of each token."""
    sentence = np.repeat(np.arange(len(documents.sentences.array) - 1), np.diff(documents.sentences.array))
    document = np.repeat(np.arange(len(documents)), np.diff(documents.documents.array))
    return sentence, document[sentence]


@pytest.mark.parametrize("length", [8, 13, 40, 500])
def test_every_sentence_is_used_once_and_random_ones_come_from_elsewhere(tmp_path: Path, length: int) -> None:
    documents, _ = corpus(tmp_path / "train")
    sentence, document = owner(documents)
    layouts = Layouts(documents, How(length), count=3, seed=0)
    sizes = np.diff(documents.sentences.array)
    for records in (mapped.array for mapped in layouts.records):
        spans = [(r["a"], r["a"] + r["a_length"], r["b"], r["b"] + r["b_length"]) for r in records]
        assert all(a < a_end and b < b_end for a, a_end, b, b_end in spans)
        used = Counter[int]()
        for (a, a_end, b, b_end), random in zip(spans, records["random"], strict=True):
            assert len({*document[a:a_end]}) == len({*document[b:b_end]}) == 1
            assert (document[a] != document[b]) == random
            if not random:
                assert b >= a_end
            used.update({*sentence[a:a_end], *(() if random else sentence[b:b_end])})
        assert set(used.values()) == {1}
        missing = set(range(len(sizes))) - set(used)
        assert not missing or length < 500  # only what was cut away is not seen
        assert layouts.lengths(0).max() <= length


def test_text_is_only_cut_where_it_is_too_long(tmp_path: Path) -> None:
    documents, _ = corpus(tmp_path / "train")
    layouts = Layouts(documents, How(30), count=1, seed=0)
    begins = set(documents.sentences.array.tolist())
    for record in layouts.records[0].array:
        whole = {record["a"], record["a"] + record["a_length"], record["b"], record["b"] + record["b_length"]} <= begins
        assert whole or record["a_length"] + record["b_length"] == 27


def by_hand(documents: Documents, how: How, chance: Random) -> list[tuple[list[int], list[int], int]]:
    """The rules of the paper's code word by word: lists of sentences, popped token by token."""
    starts = documents.sentences.array.tolist()
    numbers = [list(range(start, end)) for start, end in pairwise(starts)]
    texts = [numbers[slice(*documents.span(number))] for number in range(len(documents))]
    found = []
    for number, text in enumerate(texts):
        place, chunk = 0, list[list[int]]()
        wanted = how.room
        while place < len(text):
            if not chunk:
                wanted = chance.randint(2, how.room) if chance.random() < how.short else how.room
            chunk.append(text[place])
            if place == len(text) - 1 or sum(map(len, chunk)) >= wanted:
                cut = chance.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [token for one in chunk[:cut] for token in one]
                b, random = list[int](), len(chunk) == 1 or chance.random() < 0.5
                if random:
                    other = chance.choice([one for index, one in enumerate(texts) if index != number])
                    for one in other[chance.randrange(len(other)) :]:
                        b += one
                        if len(b) >= wanted - len(a):
                            break
                    place -= len(chunk) - cut
                else:
                    b = [token for one in chunk[cut:] for token in one]
                while len(a) + len(b) > how.room:
                    (a if len(a) > len(b) else b).pop(0 if chance.random() < 0.5 else -1)
                found.append((a, b, int(random)))
                chunk = []
            place += 1
    return found


def test_sequences_are_as_often_as_those_made_by_hand(tmp_path: Path) -> None:
    """Of a small corpus, the distribution of the sequences: no two frequencies are further apart than chance allows."""
    documents, _ = corpus(tmp_path / "train", documents=3, longest=5, seed=3)
    how = How(14, short=0.3)
    chance = Random(0)
    ours, theirs = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for _ in range(3000):
        ours.update(_walk(documents, how, chance))
        theirs.update((a[0], b[0], len(a), len(b), random) for a, b, random in by_hand(documents, how, chance))
    assert abs(ours.total() - theirs.total()) < 0.02 * theirs.total()
    wrong = [
        name for name in ours | theirs if abs(ours[name] - theirs[name]) > 4.5 * (ours[name] + theirs[name]) ** 0.5
    ]
    assert not wrong


def test_half_are_random_where_there_are_two_sentences_to_part(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="word", size=300)
    long = [Sentence(0, " ".join(WORDS[:5]), first=number % 1000 == 0) for number in range(200_000)]
    documents = Documents.build(tmp_path / "train", long, tokenizer, bad=BadLines())
    random = Layouts(documents, How(64, short=0.0), count=1, seed=0).records[0].array["random"]
    assert abs(random.mean() - 0.5) < 3 * 0.5 / len(random) ** 0.5


def test_one_sentence_alone_is_always_random(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="word", size=300)
    alone = [Sentence(0, "w1 w2", first=True) for _ in range(50)]
    documents = Documents.build(tmp_path / "train", alone, tokenizer, bad=BadLines())
    assert Layouts(documents, How(64), count=1, seed=0).records[0].array["random"].all()


def test_short_ones_are_as_many_as_asked_for(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="word", size=300)
    words = [Sentence(0, "w1", first=number % 50_000 == 0) for number in range(100_000)]
    documents = Documents.build(tmp_path / "train", words, tokenizer, bad=BadLines())
    for short in (0.0, 0.1, 1.0):
        lengths = Layouts(documents, How(102, pairs=False, short=short), count=1, seed=0).lengths(0)[:-2]
        found = (lengths < 102).mean()  # of a shorter length, one in 99 is as long as the others
        assert abs(found - short * 98 / 99) <= 3 * (short * (1 - short) / len(lengths)) ** 0.5 + 1e-9 + 0.01 * short


def test_sequences_have_their_marks_and_segments(tmp_path: Path) -> None:
    documents, tokenizer = corpus(tmp_path / "train")
    layouts, marks = Layouts(documents, How(30), count=1, seed=0), tokenizer.marks
    records = layouts.records[0].array
    found = layouts.gather(0, np.arange(len(records)), marks)
    for row, record in enumerate(records):
        a = documents.tokens.array[record["a"] :][: record["a_length"]].tolist()
        b = documents.tokens.array[record["b"] :][: record["b_length"]].tolist()
        length = int(found.real[row].sum())
        assert found.tokens[row, :length].tolist() == [marks.begin, *a, marks.end, *b, marks.end]
        assert found.segments[row, :length].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert (found.tokens[row, length:] == marks.pad).all()
        assert not found.segments[row, length:].any()
    assert found.random.tolist() == records["random"].tolist()


def test_without_pairs_a_sequence_is_one_segment(tmp_path: Path) -> None:
    documents, tokenizer = corpus(tmp_path / "train", documents=1, longest=6)
    layouts, marks = Layouts(documents, How(20, pairs=False, short=0.0), count=1, seed=0), tokenizer.marks
    found = layouts.gather(0, np.arange(len(layouts.records[0].array)), marks)
    assert (found.tokens == marks.end).sum(1).tolist() == [1] * len(found.tokens)
    assert not found.segments.any()
    assert not found.random.any()
    assert found.real[:-1].all()  # full but for the last


def test_an_epoch_shows_every_sequence_once_and_the_next_another_layout(tmp_path: Path) -> None:
    documents, _ = corpus(tmp_path / "train", 60)
    layouts = Layouts(documents, How(30), count=2, seed=0)
    step = 0
    for epoch in range(5):
        seen: list[int] = []
        while (turn := layouts.turn(step, 0, 1, tokens=7 * 30)).epoch == epoch:
            assert turn.layout == epoch % 2
            lengths = layouts.lengths(turn.layout)[turn.places]
            assert len(lengths) * lengths.max() <= 7 * 30
            assert epoch <= layouts.epoch(step, 1, tokens=7 * 30) < epoch + 1
            seen += turn.places.tolist()
            step += 1
        assert sorted(seen) == list(range(len(layouts.records[epoch % 2].array)))
        assert seen != sorted(seen)
        assert layouts.epoch(step, 1, tokens=7 * 30) == pytest.approx(epoch + 1)


def test_processes_share_a_step(tmp_path: Path) -> None:
    documents, _ = corpus(tmp_path / "train", 60)
    layouts = Layouts(documents, How(30), count=1, seed=0)
    alone = [layouts.turn(step, 0, 1, tokens=5 * 30).places.tolist() for step in range(6)]
    shared = [layouts.turn(step, rank, 3, tokens=5 * 30).places.tolist() for step in range(2) for rank in range(3)]
    assert shared == alone


def test_layouts_are_made_once_and_depend_on_the_seed(tmp_path: Path) -> None:
    documents, _ = corpus(tmp_path / "train")
    first = Layouts(documents, How(30), count=2, seed=0)
    files = [tmp_path / "train" / "pairs-30-0.1-2-0" / str(number) for number in range(2)]
    times = [path.stat().st_mtime_ns for path in files]
    again = Layouts(Documents.open(tmp_path / "train"), How(30), count=2, seed=0)
    assert [path.stat().st_mtime_ns for path in files] == times
    other = Layouts(documents, How(30), count=2, seed=1)
    contents = [records.array.tobytes() for layouts in (first, again, other) for records in layouts.records]
    assert contents[:2] == contents[2:4]
    assert len(set(contents)) == 4
    assert first.counts().sum() == sum(len(records.array) for records in first.records)


def test_what_cannot_be_laid_out_is_refused(tmp_path: Path) -> None:
    documents, _ = corpus(tmp_path / "train", documents=1)
    with pytest.raises(DataError, match=r"^train: one document, but a random next segment comes from another .* blank"):
        Layouts(documents, How(30), count=1, seed=0)
    with pytest.raises(ConfigError, match=r"train\.tokens = 100 cannot hold a sequence of 128 tokens; write"):
        check(100, 128)
    check(128, 128)
    folder = tmp_path / "train" / "single-30-0.1-1-0"
    Layouts(documents, How(30, pairs=False), count=1, seed=0)
    (folder / "0").write_bytes(b"x" * (RECORD.itemsize + 1))
    with pytest.raises(DataError, match=r"cannot be read as sequences .*; delete the folder"):
        Layouts(documents, How(30, pairs=False), count=1, seed=0)
