"""Each turn answers the turn before, whoever speaks; compressed files are read as plain ones are."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.config import make_recipe, read_toml
from regard.config.data import PairsData
from regard.data.dialogue import exchanges
from regard.data.text import EMPTY, ENCODING, JSON, KEYS, SEEN, SPEAKERS, BadLines, read_pairs, unseen
from regard.errors import ConfigError, DataError
from regard.models import schema
from regard.prepare.rewrite import examples, prepare
from regard.recipes import find_recipe
from tests import tiny

name = st.text("ABab#12 ", min_size=1).map(str.strip).filter(bool)
words = st.text("abc #123.:", min_size=1).map(lambda text: text.replace(": ", ":").strip(": ")).filter(bool)

TALK = "Customer: My screen is blank.\nSupport: Is it plugged in?\nCustomer: It was not. Thank you."


PACK: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress, ".GZ": gzip.compress}


def write(folder: Path, file: str, data: str | bytes) -> Path:
    path, raw = folder / file, data.encode() if isinstance(data, str) else data
    path.write_bytes(PACK.get(path.suffix, bytes)(raw))
    return path


def dialogues(*talks: str) -> str:
    return "".join(json.dumps({"id": number, "talk": talk}) + "\n" for number, talk in enumerate(talks))


# ---- turns


@given(st.lists(st.tuples(name, st.lists(words, min_size=1, max_size=3)), min_size=1, max_size=6))
def test_each_turn_is_answered_by_the_next_speaker(turns: list[tuple[str, list[str]]]) -> None:
    """A turn of several lines names its speaker at the first, and who speaks leaves no trace in the text."""
    turns = [next(same) for _, same in groupby(turns, key=itemgetter(0))]
    text = "\n".join(f"{speaker}: " + "\n".join(lines) for speaker, lines in turns)
    assert exchanges(text) == list(pairwise(" ".join(lines) for _, lines in turns))


def test_who_speaks_on_is_not_answering() -> None:
    one = exchanges("A: Hello.\nA: Are you there?\nB: Yes.")
    assert one == exchanges("A: Hello.\n\n  Are you there?\r\n B: Yes. \n") == [("Hello. Are you there?", "Yes.")]


def test_a_colon_inside_a_word_names_nobody() -> None:
    talk = "#Person1#: When?\n#Person2#: Half past three.\n3:30, see https://example.org\n#Person1#: Thanks, #Person2#."
    assert exchanges(talk)[0] == ("When?", "Half past three. 3:30, see https://example.org")
    assert exchanges(talk)[1][1] == "Thanks, #Person2#."


@pytest.mark.parametrize("talk", ["", "\n", "My screen is blank.", "A: Hello?\nA: Hello?", "no names\nat all"])
def test_nobody_answers(talk: str) -> None:
    assert exchanges(talk) == []


# ---- files


def test_every_exchange_has_the_line_of_its_dialogue(tmp_path: Path) -> None:
    path = write(tmp_path, "x.jsonl", dialogues(TALK, "A: One?\nB: Two."))
    bad = BadLines()
    assert list(read_pairs([path], turns="talk", bad=bad, on_bad="refuse")) == [
        (1, "My screen is blank.", "Is it plugged in?"),
        (1, "Is it plugged in?", "It was not. Thank you."),
        (2, "One?", "Two."),
    ]
    assert str(bad) == "0 of 3 exchanges skipped"


BAD = [
    (json.dumps({"talk": "A: Hello?\nA: Hello?"}), SPEAKERS, "x.jsonl, line 2: nobody answers where lines .speaker: "),
    (json.dumps({"talk": "hm"}), SPEAKERS, "of two speakers were wanted, under the key 'talk': 'hm'; mend it, or set "),
    (json.dumps({"talk": "A: Hello?\nB: \nA: Hello?"}), EMPTY, "line 2: the target side is empty beside 'Hello.'"),
    (json.dumps({"talk": ["A: Hello?", "B: Yes."]}), KEYS, "no text under the key 'talk' .data.turns names the key.: "),
    (json.dumps({"text": "A: Hello?\nB: Yes."}), KEYS, "no text under the key 'talk'"),
    ('{"talk": "A: \\ud800\\nB: b"}', ENCODING, "half a character, which UTF-8 cannot hold, under the key 'talk'"),
    ("A: Hello?", JSON, "line 2: not JSON: 'A: Hello.'"),
]


@pytest.mark.parametrize(("line", "kind", "sentence"), BAD)
def test_a_bad_dialogue_is_a_bad_line(tmp_path: Path, line: str, kind: str, sentence: str) -> None:
    path = write(tmp_path, "x.jsonl", dialogues(TALK) + line + "\n" + dialogues(TALK))
    bad = BadLines()
    assert [number for number, *_ in read_pairs([path], turns="talk", bad=bad)] == [1, 1, 3, 3]
    assert (bad.counts, bad.first) == ({kind: 1}, {kind: [2]})
    assert str(bad) == f"1 of 5 exchanges skipped: 1 {kind} (line 2)"
    with pytest.raises(DataError, match=sentence):
        list(read_pairs([path], turns="talk", bad=BadLines(), on_bad="refuse"))


def test_turns_are_found_in_one_jsonl_alone(tmp_path: Path) -> None:
    tsv, jsonl = tmp_path / "x.tsv", tmp_path / "x.jsonl"
    for files, fields, sentence in (
        ([tsv], None, "data.turns = 'talk' is for one .jsonl; leave it out for other files"),
        ([tsv, tsv], None, "is for one .jsonl"),
        ([jsonl], ("a", "b"), r"data.turns = 'talk' beside data.fields = \['a', 'b'\]: leave one of them out"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            next(read_pairs(files, fields=fields, turns="talk", bad=BadLines()))


@pytest.mark.parametrize(
    ("files", "turns"),
    [
        ({"a.en": "\ufeffone\ntwo\n", "a.de": "eins\r\nzwei"}, None),
        ({"a.tsv": "one\teins\ntwo\tzwei\n"}, None),
        ({"a.JSONL": '{"source": "one", "target": "eins"}\n'}, None),
        ({"a.jsonl": dialogues(TALK, TALK)}, "talk"),
    ],
)
def test_compressed_files_are_read_as_plain_ones_are(tmp_path: Path, files: dict[str, str], turns: str | None) -> None:
    plain = [write(tmp_path, file, text) for file, text in files.items()]
    for kind in PACK:
        packed = [write(tmp_path, f"{file}{kind}", text) for file, text in files.items()]
        found = list(read_pairs(packed, turns=turns, bad=BadLines(), on_bad="refuse"))
        assert found == list(read_pairs(plain, turns=turns, bad=BadLines(), on_bad="refuse")) != []


@pytest.mark.parametrize("kind", [".xz", ".gz"])
def test_a_compressed_file_that_is_damaged(tmp_path: Path, kind: str) -> None:
    whole = PACK[kind](b"one\teins\n" * 1000)
    for raw, sentence in (
        (whole[: len(whole) // 2], rf"x.tsv{kind}: not a whole {kind} file \(Compressed file ended .*\); compress it"),
        (b"one\teins\n", rf"not a whole {kind} file \(.*\); compress it again, or name the plain file"),
        (PACK[kind](b""), f"x.tsv{kind}: empty; name a file with a sentence on every line"),
    ):
        (tmp_path / f"x.tsv{kind}").write_bytes(raw)
        with pytest.raises(DataError, match=sentence):
            list(read_pairs([tmp_path / f"x.tsv{kind}"], bad=BadLines()))


# ---- what training has shown


def test_what_training_shows_is_not_held_out() -> None:
    shown = [(1, "Hello, Ann.", "Hi!"), (2, "Is it 3?", "Yes.")]
    held = [(1, "hello ann", "HI"), (1, "Is it 3?", "No."), (2, "Is it 4?", "Yes."), (2, "Is it 3?", "Yes.")]
    bad = BadLines()
    assert list(unseen(held, shown, bad=bad)) == held[1:3]
    assert (bad.counts, bad.first) == ({SEEN: 2}, {SEEN: [1, 2]})
    with pytest.raises(DataError, match=r"line 1: training shows it too: 'hello ann'; mend it, or set data.bad_lines"):
        list(unseen(held, shown, bad=BadLines(), on_bad="refuse"))


@given(*[st.lists(st.tuples(*[st.text("aB.", min_size=1, max_size=2)] * 2))] * 2)
def test_held_out_is_what_was_never_shown(ours: list[tuple[str, str]], theirs: list[tuple[str, str]]) -> None:
    held, shown = ([(1, *pair) for pair in pairs] for pairs in (ours, theirs))
    fresh = list(unseen(held, shown, bad=BadLines()))
    assert not set(fresh) & set(shown)
    assert list(unseen(held, [], bad=BadLines())) == held
    assert list(unseen(fresh, shown, bad=BadLines())) == fresh


def test_a_line_of_many_exchanges_is_named_once() -> None:
    bad = BadLines()
    for line in (4, 4, 4, 9):
        bad.add(SEEN, line, "", on_bad="skip")
    assert str(bad).endswith("4 seen in training (lines 4, 9)")


# ---- recipes


def recipe(folder: Path, *talks: str) -> dict[str, Any]:
    path = write(folder, "talk.jsonl.xz", dialogues(*talks))
    data = {"valid": [str(path)], "turns": "talk", "longest": 64}
    return tiny.from_files(path, data=data, train={"steps": 2}, tokens={"joint": True})


def test_a_run_learns_from_dialogues_and_answers(tmp_path: Path) -> None:
    talks = [f"A: Is it {number}?\nB: It is {number + 1}.\nA: Thanks." for number in range(40)]
    pipeline = regard.load(tiny.train(tmp_path / "run", recipe(tmp_path, *talks)))
    assert isinstance(pipeline("Is it 7?"), str)
    kept = json.loads((tmp_path / "run" / "data" / "valid.json").read_text("utf-8"))
    assert sorted(map(tuple, kept)) == sorted(pair for talk in talks for pair in exchanges(talk))


def test_a_dialogue_that_a_model_cannot_read_to_its_end_is_not_measured(tmp_path: Path) -> None:
    """Learned positions end; the text that is measured then has no turn that is longer."""
    values = recipe(tmp_path, TALK, f"A: {'0 ' * 90}\nB: Sorry?\nA: Blank.")
    values["model"] |= {"positions": "learned", "context": 64}
    _, task = prepare(make_recipe(values, schema), tmp_path)
    held = task.held["valid"]
    assert held.sources == [source for source, _ in exchanges(TALK)]
    assert sorted(held.store.lines) == [1, 1, 2]


@pytest.mark.data("dialogsum")
def test_the_shipped_recipe_finds_its_dialogues(data_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(data_dir("dialogsum").parent))
    data = PairsData(**read_toml(find_recipe("dialogue"))["data"])
    bad = BadLines()
    found = list(examples(data, "valid", bad))
    assert (bad.read, len(found), bad.counts) == (4189, 3448, {SEEN: 741})
    assert not [side for _, *sides in found for side in sides if side.startswith("#Person1#:")]
