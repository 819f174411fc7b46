"""Whatever is wrong with a folder that somebody else wrote, it is refused in a sentence or it answers.

A worker in a process of its own imports each folder, writes it as a run, loads that and asks it. It must stay alive,
in time and in bounds, run nothing of the folder, and write nowhere but into its target.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from interop.mutations import (
    ARCHITECTURES,
    CHANGES,
    INDEX,
    WEIGHTS,
    header_of,
    put,
    read,
    rewrite,
    sequence,
    split,
    tokenizer_of,
    whole,
)

from regard.data.tokenizer import Tokenizer
from regard.errors import CheckpointError, RegardError
from regard.interop import spm
from regard.interop.files import Entry
from regard.interop.files import load as read_tensors
from regard.interop.hf import import_folder, write_run
from regard.pipeline import load
from regard.weights import encode, load_weights

PATIENCE = 20.0  # seconds for one folder
GROWTH = 1500  # most megabytes that one may cost


# ------------------------------------------------------------------ the worker

FORBIDDEN = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "pickle.find_class",
)  # fmt: skip
WRITES = (
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.utime",
    "shutil.rmtree",
)  # fmt: skip


class Found(NamedTuple):
    """What became of a folder."""

    outcome: str
    said: str
    deeds: list[str]
    """What was done that must not be."""
    seconds: float
    megabytes: int

    def faults(self) -> list[str]:
        return [
            *([f"failed: {self.said}"] if self.outcome == "failed" else []),
            *([f"no sentence: {self.said[:300]!r}"] if self.outcome == "refused" and not _sentence(self.said) else []),
            *self.deeds,
            *([f"took {self.seconds:.1f} s"] if self.seconds > PATIENCE else []),
            *([f"took {self.megabytes} MB"] if self.megabytes > GROWTH else []),
        ]


def work(line: Connection, home: str) -> None:
    """Answers a folder and a target with what became of them."""
    os.chdir(home)
    os.environ["HOME"] = home
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # rather this process than its neighbours
    deeds: list[str] = []
    place = [Path(home)]

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event in FORBIDDEN or (event in WRITES and not _within(given[0], place[0])):
            deeds.append(f"{event} {given}")
        elif event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            if not _within(given[0], place[0]) and str(given[0]) != "/proc/self/clear_refs":
                deeds.append(f"{event} {given}")
        elif event == "import" and given[0] and "evil" in str(given[0]):
            deeds.append(f"{event} {given}")

    sys.addaudithook(watch)
    while (given := line.recv()) is not None:
        folder, target = map(Path, given)
        place[0] = target.parent
        deeds.clear()
        _forget_peak()
        before, begun = _memory("VmRSS"), time.monotonic()
        outcome, said = _outcome(folder, target)
        line.send(Found(outcome, said, list(deeds), time.monotonic() - begun, _memory("VmHWM") - before))


def _outcome(folder: Path, target: Path) -> tuple[str, str]:
    try:
        write_run(import_folder(folder), target)
        pipeline = load(target, device="cpu")
        how: dict[str, Any] = {"longest": 4} if pipeline.recipe.task.name in ("rewrite", "language") else {}
        (reply,) = pipeline.ask([pipeline.example("Two xxxxxxxxxx dogs")], **how)
        return "answered", reply.text
    except RegardError as error:
        return "refused", str(error)
    except BaseException:
        return "failed", traceback.format_exc()


def _within(path: Any, folder: Path) -> bool:
    return isinstance(path, int) or Path(os.fsdecode(path)).resolve().is_relative_to(folder.resolve())


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _memory(what: str) -> int:
    """In megabytes."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) >> 10


class Worker:
    """A process that is asked; one that does not answer in time is ended, and begun again for the next."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        self.process = context.Process(target=work, args=(other, str(self.home)), daemon=True)
        self.process.start()
        other.close()

    def ask(self, folder: Path, target: Path) -> Found:
        self.line.send((str(folder), str(target)))
        try:
            if self.line.poll(PATIENCE * 3):
                found: Found = self.line.recv()
                return found
            why = "no answer in time"
        except EOFError:
            why = "the process is dead"
        self.end()
        self._begin()
        return Found("failed", why, [], PATIENCE, 0)

    def end(self) -> None:
        with suppress(OSError):
            self.line.send(None)
        self.process.join(0.5)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.line.close()


@contextmanager
def worker(home: Path) -> Iterator[Worker]:
    one = Worker(home)
    try:
        yield one
    finally:
        one.end()


# ------------------------------------------------------------------ the law


def storm(home: Path, count: int) -> tuple[Counter[str], list[str]]:
    """How many were refused and how many answered; and whatever broke the law."""
    families, held, faults, outcomes = sorted(ARCHITECTURES), dict[str, Path](), [], Counter[str]()
    (home / "home").mkdir()
    with worker(home / "home") as one:
        for number, (change, seed) in enumerate(changes(count)):
            turn, kind = divmod(number, len(families))
            shape = turn % 12 if count > 100 else 3 * (turn % 2)
            name = f"{families[kind]}-{shape}"
            if name not in held:
                held[name] = whole(families[kind], shape, home / "whole" / name)
                outcome, said, *_ = one.ask(held[name], home / "runs" / name)
                assert outcome == "answered", said
            place = stage(held[name], home / f"{number}")
            CHANGES[change][0](place / "model", random.Random(f"{change} {seed}"))
            before = snapshot(place), snapshot(one.home)
            found = one.ask(place / "model", place / "out" / "run")
            outcomes[found.outcome] += 1
            wrong = [*found.faults(), *left_behind(place)]
            wrong += ["wrote elsewhere"] if before != (snapshot(place), snapshot(one.home)) else []
            faults += [f"{change} {seed} of {name}: {fault}" for fault in wrong]
            shutil.rmtree(place)
    return outcomes, faults


def changes(count: int) -> list[tuple[str, int]]:
    """So many of them, by their shares, and each at least once."""
    total = sum(share for _, share in CHANGES.values())
    return [(name, i) for name, (_, share) in CHANGES.items() for i in range(max(1, round(share * count / total)))]


def stage(whole: Path, place: Path) -> Path:
    """A copy, beside it what it must not reach, and where it may write."""
    shutil.copytree(whole, place / "model")
    (place / "secret.json").write_text("{}", "utf-8")
    (place / "secret.safetensors").write_bytes(encode({"secret": torch.ones(3)}))
    (place / "out").mkdir()
    return place


def snapshot(folder: Path) -> dict[str, Any]:
    """Everything below, but for what is in `out`."""
    found = {path: path.lstat() for path in folder.rglob("*") if path.parent.name not in ("out", "run")}
    return {str(path): (told.st_mode, told.st_size) for path, told in found.items()}


def left_behind(place: Path) -> list[str]:
    left = sorted(path.name for path in (place / "out").iterdir())
    return ([f"left {left}"] if left not in ([], ["run"]) else []) + (["owned"] if [*place.rglob("owned")] else [])


def _sentence(said: str) -> bool:
    """One, that can be read, and that is nobody else's report of a failure."""
    return said.isprintable() and 20 < len(said) < 1000 and "Traceback" not in said


measured = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux to measure its memory")


@measured
def test_twenty_folders_that_are_wrong(tmp_path: Path) -> None:
    outcomes, faults = storm(tmp_path, 20)
    assert not faults, "\n".join(faults)
    assert outcomes["refused"] > 10
    assert outcomes["answered"] > 0


@measured
@pytest.mark.storm
def test_a_thousand_folders_that_are_wrong(tmp_path: Path) -> None:
    outcomes, faults = storm(tmp_path, 1000)
    assert not faults, "\n".join(faults)
    assert sum(outcomes.values()) >= 1000
    assert outcomes["refused"] > 600


# ------------------------------------------------------------------ what each bound says


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole("gpt2", 3, tmp_path_factory.mktemp("whole") / "gpt2")


@pytest.fixture
def folder(gpt2: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gpt2, tmp_path / "model"))


def refused(folder: Path, sentence: str) -> None:
    with pytest.raises(RegardError, match=sentence) as told:
        import_folder(folder)
    assert _sentence(str(told.value))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"model_type": "gpt2", "x": ' + "[" * 40 + "]" * 40 + "}", "nested too deeply"),
        ('{"model_type": "\\ud800"}', "surrogates not allowed"),
        ('{"vocab_size": ' + "9" * 101 + "}", "a number has more than 100 digits"),
        ('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 900}',
        "means 900 layers, but the file"),
        ('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": "' + "x" * 999 + '"}',
        "a number or a word"),
        ('{"model_type": "gpt2", "architectures": ["' + "x" * 999 + '"]}', "architectures: 'xxx.*… of the family"),
    ],
    ids=range(6),
)  # fmt: skip
def test_a_configuration_in_bounds(text: str, sentence: str, folder: Path) -> None:
    (folder / "config.json").write_text(text, "utf-8")
    refused(folder, sentence)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_bert_has_segments(family: str, tmp_path: Path) -> None:
    folder = whole(family, 0, tmp_path / "model")
    put(folder, "config.json", {**read(folder, "config.json"), "type_vocab_size": "0"})
    refused(folder, "type_vocab_size: 0 came, but 1 at least is wanted")


def test_an_index_in_bounds(folder: Path) -> None:
    index = read(folder, INDEX)
    first = min(index["weight_map"])
    for name, sentence in (("a\nb", "only files of the folder"), ("link", "leads out of the folder; put the file")):
        put(folder, INDEX, {"weight_map": {**index["weight_map"], first: name}})
        with suppress(FileExistsError):
            (folder / "link").symlink_to("link")
        refused(folder, sentence)
    put(folder, INDEX, {"weight_map": {f"{i}": f"{i}.safetensors" for i in range(1001)}})
    refused(folder, "names 1001 files, but at most 1000 are read")


def test_weights_are_numbers_that_the_machine_can_hold(folder: Path) -> None:
    path = folder / "model-0.safetensors"
    header, data = header_of(path)
    rewrite(path, header, b"\xff" * len(data))
    refused(folder, "holds what is no number")
    rewrite(path, {**header, "__metadata__": {"format": 1}}, data)
    refused(folder, "what it says of itself is no table of texts")
    entries = {"a": Entry(path, "F32", (2**20, 2**20))}
    with pytest.raises(CheckpointError, match=r"its weights fill 4096 GB, but this machine has \d+ GB of memory"):
        read_tensors(entries, ["a"])


LETTER = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
BOUNDS: dict[str, tuple[dict[str, Any], str]] = {
    "twice bytes": ({"normalizer": sequence("normalizer", *[{"type": "ByteLevel"}] * 2)},
    "has 2 parts of the type ByteLevel"),
    "no type": ({"normalizer": {"type": []}}, r"unknown type '\[\]'"),
    "hidden": ({"pre_tokenizer": split("(?#[)(x+)+y(?#])")}, "could take for ever"),
    "laid out": ({"pre_tokenizer": split("(?x)#[\n(x+)+y#]")}, "could take for ever"),
    "grouped": ({"pre_tokenizer": split("(x*|y)(x*|y)(x*|y)[^x]")}, "more than two repetitions"),
    "optional": ({"pre_tokenizer": split("x?" * 20)}, "eight parts that may be left out"),
    "added": ({"added_tokens": [{"id": i, "content": "x" * 4000 + f"{i}", **LETTER} for i in range(1100)]},
    "more than 4,000,000 bytes"),
    "affix": ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "x" * 99}},
    "end_of_word_suffix has more than 64"),
    "one number": ({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 0}}},
    "two of its tokens have one number"),
    "unigram": ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["x" * 4000 + f"{i}", 0.0] for i in range(1100)]}},
    "more than 4,000,000 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_a_tokenizer_in_bounds(name: str, folder: Path) -> None:
    parts, sentence = BOUNDS[name]
    put(folder, "tokenizer.json", {**tokenizer_of(folder), **parts})
    refused(folder, sentence)


UNKNOWN = spm.Piece("<unk>", kind=spm.UNKNOWN)
MODELS: dict[str, tuple[bytes, str]] = {
    "long": (spm.encode(spm.Model((UNKNOWN, spm.Piece("a" * 5000)))), "a piece has more than 4,096 letters"),
    "long merged": (spm.encode(spm.Model((UNKNOWN, spm.Piece("a" * 300)), kind=spm.BPE)), "more than 256 letters"),
    "ladders": (
        spm.encode(spm.Model((UNKNOWN, *(spm.Piece("a" * n) for n in range(1, 257))), kind=spm.BPE)),
        "can be made in too many ways",
    ),
    "fields": (b"\x78\0" * 8_001, "more than 8,000 pieces"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_sentencepiece_model_in_bounds(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spm, "MOST_TOKENS", 8000)
    monkeypatch.setattr(spm, "LARGEST_FILE", 2_000_000)
    (folder / "tokenizer.json").unlink()
    data, sentence = MODELS[name]
    put(folder, "spiece.model", data)
    refused(folder, sentence)


def test_a_list_that_is_all_holes(tmp_path: Path) -> None:
    folder = whole("marian", 0, tmp_path / "model")
    put(folder, "vocab.json", {"<unk>": 0, "</s>": 1, "<pad>": 1_999_999})
    refused(folder, "most of the numbers of its list have no token")


@pytest.mark.parametrize("shape", [(5, 0), (0, 5), (1,), (2, 3, 4)])
def test_a_table_that_holds_no_waves(shape: tuple[int, ...], tmp_path: Path) -> None:
    folder = whole("marian", 0, tmp_path / "model")
    tensors = load_weights(folder / WEIGHTS) | {"model.encoder.embed_positions.weight": torch.zeros(shape)}
    (folder / WEIGHTS).write_bytes(encode(tensors))
    refused(folder, "holds no waves of sines and cosines")


@pytest.mark.parametrize("name", ["file", "file/x", "pipe", "full", ".", "/dev/null", "/dev/null/x"])
def test_a_bad_target_is_left_as_it_is(name: str, gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine", "utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    os.mkfifo(tmp_path / "pipe")
    before = snapshot(tmp_path)
    with pytest.raises(
        RegardError, match=r"is there already; name a folder that is not|cannot be written: Not a directory"
    ):
        write_run(import_folder(gpt2), name)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("marks", "sentence"),
    [
        ({"pad": "\ud800"}, r"pad is '\\ud800', which the vocabulary lacks"),
        ({"pad": "x" * 9999}, "pad is 'xxx.*, which the vocabulary lacks"),
        ({"x" * 9999: "a"}, "no mark is called 'xxx"),
        ({"before": ["<bos>"] * 17}, "where a list of at most 16 tokens was wanted"),
    ],
)
def test_marks_in_bounds(marks: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    Tokenizer.train(["a b"], kind="word", size=9).save(tmp_path / "tokenizer.json")
    put(tmp_path, "marks.json", {"pad": "<pad>", "begin": "<bos>", "end": "<eos>", **marks})
    with pytest.raises(CheckpointError, match=sentence) as told:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert _sentence(str(told.value))
