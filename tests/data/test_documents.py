"""Documents go in as text and lie on disk as tokens, sentence by sentence, all or nothing."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from regard.data import documents as module
from regard.data.documents import Documents, Sentence, read_documents, sentences_of
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.errors import DataError

WORDS = [f"w{number}" for number in range(50)]


def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS)], kind="word", size=80, marks=["mask"])


def read(
    path: Path, text: str | bytes, sentences: str = "line", on_bad: str = "skip"
) -> tuple[list[list[str]], BadLines]:
    """The documents of a file, as lists of sentences."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    bad, found = BadLines(), list[list[str]]()
    for sentence in read_documents([path], sentences=sentences, bad=bad, on_bad=on_bad):  # type: ignore[arg-type]
        if sentence.first:
            found.append([])
        found[-1].append(sentence.text)
    return found, bad


def stored(store: Documents) -> list[list[list[int]]]:
    ends = store.sentences.array.tolist()
    sentences = [store.tokens.array[start:end].tolist() for start, end in pairwise(ends)]
    return [sentences[slice(*store.span(number))] for number in range(len(store))]


def test_blank_lines_part_documents_however_many_there_are(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "a.txt", "\n\nOne.\n Two. \n\n \n\nThree.\n\n")
    assert found == [["One.", "Two."], ["Three."]]


def test_a_file_ends_its_last_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\n")
    (tmp_path / "b.txt").write_text("Two.\n")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert [sentence.first for sentence in read_documents(files, bad=BadLines())] == [True, True]


def test_lines_are_split_only_where_that_is_asked_for(tmp_path: Path) -> None:
    text = "It rains. We stay!\n"
    assert read(tmp_path / "a.txt", text)[0] == [["It rains. We stay!"]]
    assert read(tmp_path / "a.txt", text, "split")[0] == [["It rains.", "We stay!"]]


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("It rains. We stay.", ["It rains.", "We stay."]),
        ("Really?! Yes… 3 times.", ["Really?!", "Yes…", "3 times."]),
        ('"It rains." (He left.) Then we ate.', ['"It rains."', "(He left.)", "Then we ate."]),
        ("Dr. J. Smith met Mr. Hyde at St. Paul's.", ["Dr. J. Smith met Mr. Hyde at St. Paul's."]),
        ("It costs 3.50 at example.com, e.g. today.", ["It costs 3.50 at example.com, e.g. today."]),
        ("Who is Smith ? A fox . It ran .", ["Who is Smith ?", "A fox .", "It ran ."]),
        ("今天下雨。我们在家！", ["今天下雨。", "我们在家！"]),
        ("no end at all", ["no end at all"]),
        ("  ", []),
    ],
)
def test_where_a_sentence_ends(paragraph: str, sentences: list[str]) -> None:
    assert sentences_of(paragraph) == sentences


def test_wikitext_has_a_document_for_each_title(tmp_path: Path) -> None:
    lines = ["", "= Robert Boulter =", "", "He is <unk> . It cost 1 @,@ 000 @.@ 5 .", "", "= = Career = =", ""]
    lines += ["A well @-@ known man .", "= = = 2000 = = =", "= Du Fu =", "", "A poet ."]
    text = "".join(f" {line} \n" for line in lines)
    first = ["He is \ufffd .", "It cost 1,000.5 .", "A well-known man ."]
    assert read(tmp_path / "wiki.tokens", text)[0] == [first, ["A poet ."]]


def squad(*articles: list[str]) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": text, "qas": []} for text in one]} for one in articles]})


def test_squad_has_a_document_for_each_article(tmp_path: Path) -> None:
    text = squad(["It rains. We stay.", "A third."], ["Another."])
    assert read(tmp_path / "train.json", text)[0] == [["It rains.", "We stay.", "A third."], ["Another."]]
    assert read(tmp_path / "train.json.xz", lzma.compress(text.encode()))[0][1] == ["Another."]
    assert read(tmp_path / "train.json.gz", gzip.compress(text.encode()))[0][1] == ["Another."]


def test_an_article_without_text_is_counted_or_refused(tmp_path: Path) -> None:
    found, bad = read(tmp_path / "train.json", squad(["One."], [], [" "], ["Two."]))
    assert found == [["One."], ["Two."]]
    assert bad.counts == {module.NO_SENTENCE: 2}
    assert bad.first == {module.NO_SENTENCE: [2, 3]}
    with pytest.raises(DataError, match=r"train\.json, article 2: has no text; mend it"):
        read(tmp_path / "train.json", squad(["One."], []), on_bad="refuse")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[", r"train\.json: not JSON .*; name a file in SQuAD's form"),
        ("[1]", r'train\.json: JSON of another form; SQuAD\'s is wanted, which is \{"data"'),
        ('{"data": [{"title": "x"}]}', "JSON of another form"),
        ("", r"train\.json: empty"),
    ],
)
def test_json_that_is_no_squad_is_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(DataError, match=error):
        read(tmp_path / "train.json", text)


def test_lines_that_are_not_utf8_are_counted_or_refused_by_number(tmp_path: Path) -> None:
    found, bad = read(tmp_path / "a.txt", b"One.\n\xff\xfe\nTwo.\n")
    assert found == [["One.", "Two."]]
    assert (bad.read, bad.first) == (3, {"not UTF-8": [2]})
    with pytest.raises(DataError, match=r"a\.txt, line 2: a\.txt is not UTF-8 at byte 0 .*; mend it"):
        read(tmp_path / "a.txt", b"One.\n\xff\xfe\n", on_bad="refuse")


def sentences(count: int, seed: int = 0) -> Iterator[Sentence]:
    chance = np.random.default_rng(seed)
    for line in range(1, count + 1):
        words = chance.choice(WORDS, chance.integers(1, 12))
        yield Sentence(line, " ".join(words), bool(chance.random() < 0.1))


def test_every_sentence_is_there_in_its_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 64)  # so that documents go over the edges of blocks
    words, expected = tokenizer(), list[list[list[int]]]()
    for sentence in sentences(1000):
        if sentence.first or not expected:
            expected.append([])
        expected[-1].append(words.encode(sentence.text))
    counted: list[int] = []
    store = Documents.build(tmp_path / "train", sentences(1000), words, bad=BadLines(), progress=counted.append)
    assert stored(store) == expected
    assert stored(Documents.open(tmp_path / "train")) == expected
    assert counted[-1] == 1000
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_a_sentence_without_tokens_is_left_out_and_its_document_still_begins(tmp_path: Path) -> None:
    given = [Sentence(1, "w1", True), Sentence(2, " ", True), Sentence(3, "w2", False), Sentence(4, " ", True)]
    bad = BadLines()
    store = Documents.build(tmp_path / "train", given, tokenizer(), bad=bad)
    assert [len(document) for document in stored(store)] == [1, 1]
    assert bad.first == {module.NO_TOKEN: [2, 4]}
    with pytest.raises(DataError, match="line 2: no token in ' '; mend it"):
        Documents.build(tmp_path / "train", given, tokenizer(), bad=BadLines(), on_bad="refuse")


def test_nothing_is_left_behind_where_nothing_can_be_stored(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n")
    bad = BadLines()
    with pytest.raises(DataError, match=r"a\.txt: no sentence is left .*; name files with text"):
        Documents.build(tmp_path / "train", read_documents([tmp_path / "a.txt"], bad=bad), tokenizer(), bad=bad)
    assert not (tmp_path / "train").exists()


def test_the_fingerprint_is_that_of_the_data(tmp_path: Path) -> None:
    def fingerprint(given: list[Sentence]) -> str:
        return Documents.build(tmp_path / "train", given, tokenizer(), bad=BadLines()).fingerprint

    text = list(sentences(100))
    moved = [sentence._replace(first=number == 7) for number, sentence in enumerate(text)]
    joined = [text[0]._replace(text=f"{text[0].text} {text[1].text}"), *text[2:]]
    prints = [fingerprint(given) for given in (text, text, moved, joined, list(sentences(100, seed=1)))]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    Documents.build(folder, sentences(100), tokenizer(), bad=BadLines())
    about = (folder / "store.json").read_text()
    (folder / "store.json").write_text(about.replace('"format": 1', '"format": 9'))
    with pytest.raises(DataError, match="documents of format 9 where 1 was wanted; delete the folder"):
        Documents.open(folder)
    (folder / "store.json").write_text("[]")
    with pytest.raises(DataError, match="cannot be read as stored documents"):
        Documents.open(folder)
    (folder / "store.json").write_text(about)
    (folder / "tokens").write_bytes((folder / "tokens").read_bytes()[:-2])
    with pytest.raises(DataError, match=r"tokens, sentences and documents where store\.json has"):
        Documents.open(folder)
    (folder / "tokens").unlink()
    with pytest.raises(DataError, match="no such file, so these are no stored documents"):
        Documents.open(folder)
