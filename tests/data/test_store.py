"""A store holds what went in, all or nothing, and says so when it does not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from regard.data import store as store_module
from regard.data.bucket import BANDS
from regard.data.store import Store
from regard.data.text import TOO_LONG, BadLines
from regard.data.tokenizer import BOS, EOS
from regard.data.writer import RECORD, Writer
from regard.errors import DataError, RegardError

from .corpus import build, pairs, tokenizers


def contents(store: Store) -> dict[int, tuple[list[int], list[int]]]:
    both = ([side.tolist() for side in store.pair(place)] for place in range(len(store)))
    return dict(zip(store.listing.array["line"].tolist(), map(tuple, both), strict=True))


def test_every_pair_is_there_with_its_line(tmp_path: Path) -> None:
    both = tokenizers()
    expected = {
        line: ([*both.source.encode(source), EOS], [BOS, *both.target.encode(target), EOS])
        for line, source, target in pairs(5000)
    }
    assert contents(build(tmp_path / "store", 5000)) == expected


def test_pairs_are_views_of_the_file(tmp_path: Path) -> None:
    store = build(tmp_path / "store", 10)
    for side in store.pair(3):
        assert np.shares_memory(side, store.tokens.array)
        assert not side.flags.writeable


def test_buckets_share_out_all_places_and_know_their_longest(tmp_path: Path) -> None:
    store = build(tmp_path / "store", 3000)
    assert 10 < len(store.buckets) <= BANDS * BANDS
    end = 0
    for bucket in store.buckets:
        assert bucket.start == end
        end += bucket.count
        records = store.listing.array[bucket.start : end]
        assert (records["source"].max(), records["target"].max()) == (bucket.source, bucket.target)
        assert bucket.longest == max(bucket.source, bucket.target)
    assert end == len(store)


def test_neighbours_in_a_bucket_are_no_neighbours_in_the_corpus(tmp_path: Path) -> None:
    store = build(tmp_path / "store", 3000)
    steps = [np.diff(store.listing.array["line"][b.start : b.start + b.count]) for b in store.buckets]
    assert 0.4 < (np.concatenate(steps) > 0).mean() < 0.6


def test_the_same_pairs_give_the_same_store(tmp_path: Path) -> None:
    one, other = build(tmp_path / "one", 500), build(tmp_path / "other", 500)
    for name in ("tokens", "listing", "store.json"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


def test_the_fingerprint_tells_data_and_settings_apart(tmp_path: Path) -> None:
    def print_of(count: int, longest: int, extra: tuple[tuple[int, str, str], ...] = ()) -> str:
        found = Store.build(
            tmp_path / "x", [*pairs(count), *extra], tokenizers(), longest=longest, bad=BadLines()
        ).fingerprint
        assert found == Store.open(tmp_path / "x").fingerprint
        return found

    prints = [print_of(50, 100), print_of(51, 100), print_of(50, 101)]
    prints += [print_of(50, 100, ((51, "1 2", "eins zwei"),)), print_of(50, 100, ((51, "1", "zwei eins zwei"),))]
    assert len(set(prints)) == 5
    assert prints[0] == print_of(50, 100)


def test_large_vocabularies_have_large_tokens(tmp_path: Path) -> None:
    for vocabulary, size in ((1 << 16, 2), ((1 << 16) + 1, 4)):
        folder = tmp_path / str(vocabulary)
        folder.mkdir()
        writer = Writer(folder, vocabulary=vocabulary, longest=9)
        writer.add(np.array([vocabulary - 1, EOS, BOS, 7, EOS]), np.array([(0, 2, 2, 1)], RECORD))
        writer.finish()
        store = Store.open(folder)
        assert store.tokens.array.itemsize == size
        assert [side.tolist() for side in store.pair(0)] == [[vocabulary - 1, EOS], [BOS, 7, EOS]]


def test_very_long_lengths_share_classes(tmp_path: Path) -> None:
    writer = Writer(tmp_path, vocabulary=100, longest=65_536)
    lengths = [1, 500, 30_000, 65_536] * 20
    records = np.array([(0, length, length, line) for line, length in enumerate(lengths)], RECORD)
    writer.add(np.full(2 * sum(lengths) + len(lengths), 5), records)
    writer.finish()
    store = Store.open(tmp_path)
    assert sorted(store.listing.array["source"].tolist()) == sorted(lengths)
    assert [bucket.longest for bucket in store.buckets if bucket.count == 20] == [1, 500, 30_000, 65_536]


def test_too_long_pairs_are_counted_or_refused(tmp_path: Path) -> None:
    lines = [(7, "1 2 3", "eins"), (8, "1", "eins zwei drei"), (9, "1 2", "eins zwei")]
    bad = BadLines()
    store = Store.build(tmp_path / "store", lines, tokenizers(), longest=3, bad=bad)
    assert (bad.counts, bad.first) == ({TOO_LONG: 2}, {TOO_LONG: [7, 8]})
    assert list(contents(store)) == [9]
    for skipped, side in enumerate(("source", "target")):
        sentence = (
            f"the data, line {7 + skipped}: 4 tokens on the {side} side where data.longest is 3; mend it, or set "
        )
        with pytest.raises(DataError, match=sentence):
            Store.build(tmp_path / "other", lines[skipped:], tokenizers(), longest=3, bad=BadLines(), on_bad="refuse")
    sentence = (
        r"the data: no pair is left \(1 of 0 lines skipped: 1 too long \(line 7\)\); give other data or raise data"
    )
    with pytest.raises(DataError, match=sentence):
        Store.build(tmp_path / "other", lines[:1], tokenizers(), longest=3, bad=BadLines())
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    Store.build(tmp_path / "x", pairs(9000), tokenizers(), longest=99, bad=BadLines(), progress=told.append)
    assert told == [4096, 8192, 9000]


def test_what_is_let_go_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = build(tmp_path / "store", 300)
    places = np.arange(300)[::-7]
    kept = store.gather(places)
    monkeypatch.setattr(store_module, "RESIDENT", 0)
    for _ in range(2):
        gone = store.gather(places)
        assert all(
            np.array_equal(a, b)
            for one, other in zip(kept[:2], gone[:2], strict=True)
            for a, b in zip(one, other, strict=True)
        )
        assert kept[2] == gone[2]


def test_a_build_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    before = contents(build(tmp_path / "store", 20))

    def broken() -> Iterator[tuple[int, str, str]]:
        yield from pairs(5000)
        raise DataError("line 5001 is odd")

    with pytest.raises(DataError, match="line 5001 is odd"):
        Store.build(tmp_path / "store", broken(), tokenizers(), longest=99, bad=BadLines())
    assert contents(Store.open(tmp_path / "store")) == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert len(build(tmp_path / "store", 30)) == 30


PROGRAM = """
import os, resource, signal, sys
from pathlib import Path
from regard.data.store import Store
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizers

def pairs(last):
    for line in range(1, 9000):
        yield line, "1 2", "eins zwei"
    last()

both = Tokenizers.train(["1 2"], ["eins zwei"], kind="word", size=9)
def build(last):
    Store.build(Path(sys.argv[1]) / "store", pairs(last), both, longest=9, bad=BadLines())
"""


def run(folder: Path, ending: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM + ending, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_killed_build_looks_like_none(tmp_path: Path) -> None:
    assert run(tmp_path, "build(lambda: os.kill(os.getpid(), signal.SIGKILL))").returncode == -signal.SIGKILL
    with pytest.raises(
        DataError, match=r"store.json: no such file, so this is no token store; delete the folder and train"
    ):
        Store.open(tmp_path / "store")
    build(tmp_path / "store", 20)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_full_disk_is_one_sentence_and_no_rubbish(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    full = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    done = run(tmp_path, f"{full}; build(lambda: None)")
    assert done.stderr.splitlines()[-1] == (
        f"regard.errors.RegardError: {tmp_path}/store: cannot be written: File too large; "
        "make room or choose another folder"
    )
    assert list(tmp_path.iterdir()) == []


def damage(folder: Path, **changes: object) -> None:
    about = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps(about | changes))


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    for name, harm, sentence in (
        ("format", lambda f: damage(f, format=99), r"store of format 99 where 1 was wanted; delete the folder"),
        ("tokens", lambda f: (f / "tokens").write_bytes((f / "tokens").read_bytes()[:-2]), r"tokens, pairs and places"),
        (
            "odd",
            lambda f: (f / "tokens").write_bytes((f / "tokens").read_bytes()[:-1]),
            r"cannot be read as a token sto",
        ),
        ("short", lambda f: (f / "listing").write_bytes((f / "listing").read_bytes()[:-24]), r"where store.json has"),
        ("empty", lambda f: (f / "listing").write_bytes(b""), r"cannot be read as a token store .*; delete the folder"),
        ("gone", lambda f: (f / "listing").unlink(), r"listing: no such file, so this is no token store"),
        ("json", lambda f: (f / "store.json").write_text("{"), r"cannot be read as a token store"),
        ("list", lambda f: (f / "store.json").write_text("[]"), r"cannot be read as a token store"),
        ("key", lambda f: (f / "store.json").write_text('{"format": 1}'), r"cannot be read as a token store .*buckets"),
        ("bytes", lambda f: damage(f, bytes=3), r"cannot be read as a token store"),
        ("buckets", lambda f: damage(f, buckets=[[0, 7, 1, 1]]), r"tokens, pairs and places where store.json has"),
    ):
        store = build(tmp_path / name, 20)
        harm(store.folder)
        with pytest.raises(DataError, match=sentence):
            Store.open(store.folder)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RegardError, match=r"file/store: cannot be written: Not a directory; make room or choose another"
    ):
        build(tmp_path / "file" / "store", 5)
