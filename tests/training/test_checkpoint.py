"""Checkpoints are whole or they are not taken, and what is loaded is what was saved."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import toy

from regard.errors import CheckpointError
from regard.training import checkpoint, state
from regard.training.checkpoint import average, found, read, save, tidy
from regard.training.keep import resume
from regard.training.run import snapshot
from regard.weights import Corrupt, load_weights, put_weights, read_weights, save_weights, told, weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    toy.go(folder)
    return folder


# ---- saving and loading


def test_what_is_read_is_what_was_saved(tmp_path: Path) -> None:
    run = toy.go(tmp_path / "run")
    saved = snapshot(run, toy.Toy(), toy.config())
    again = read(save(tmp_path / "again", saved))
    assert again.state == json.loads(json.dumps(saved.state))
    for name, tensors in saved.tensors.items():
        assert tensors.keys() == again.tensors[name].keys()
        for key, tensor in tensors.items():
            torch.testing.assert_close(again.tensors[name][key], tensor.cpu(), rtol=0, atol=0)


def test_a_checkpoint_of_the_same_step_replaces_the_old_one(tmp_path: Path) -> None:
    run = toy.fresh(tmp_path, toy.config())
    path = save(tmp_path, snapshot(run, toy.Toy(), toy.config()))
    run.best = 0.5
    assert save(tmp_path, snapshot(run, toy.Toy(), toy.config())) == path
    assert read(path).state["best"] == 0.5
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000000"]


def test_nothing_but_the_last_the_best_and_the_averaged_is_kept(tmp_path: Path) -> None:
    def kept(name: str, **changes: Any) -> list[int]:
        toy.go(tmp_path / name, save_every=2, evaluate_every=3, metric="accuracy", **changes)
        return [checkpoint.step_of(path) for path in found(tmp_path / name / "checkpoints")]

    best = toy.go(tmp_path / "best", evaluate_every=3, metric="accuracy").best_step or 0
    assert kept("few", keep=1) == sorted({best, 20})
    assert kept("more", keep=4) == sorted({best, 14, 16, 18, 20})
    assert kept("averaged", keep=1, final="average", average=3) == sorted({best, 16, 18, 20})


def test_leftovers_of_dead_processes_are_cleaned_up(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / f".tmp-00000007-{dead.pid}").mkdir()
    (tmp_path / f".tmp-00000008-{os.getppid()}").mkdir()
    (tmp_path / ".old-step-00000001").mkdir()
    (tmp_path / ".old-step-00000002").mkdir()
    (tmp_path / "step-00000002").mkdir()
    tidy(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f".tmp-00000008-{os.getppid()}", "step-00000001", "step-00000002"}


@pytest.mark.parametrize("carry", [None, 3, [torch.ones(2), (torch.zeros(1), "x")], {"a": {"b": torch.arange(3)}}, {}])
def test_a_carry_survives(carry: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    form = json.loads(json.dumps(state.pack(carry, tensors)))
    assert repr(state.unpack(form, tensors, torch.device("cpu"))) == repr(carry)


def test_a_carry_of_strange_things_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"may hold dicts, lists, tuples, tensors and plain values, .* holds a set"
    ):
        state.pack({"a": {1, 2}}, {})


# ---- weights


def test_tied_weights_are_saved_once_and_restored_to_both_names(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, other = toy.Bigram(), toy.Bigram()
    save_weights(tmp_path / "model.safetensors", model)
    held = load_weights(tmp_path / "model.safetensors")
    assert ("words.weight" in held) != ("out.weight" in held)
    put_weights(other, held)
    assert other.out.weight is other.words.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    put_weights(other, {"out.weight" if name == "words.weight" else name: t for name, t in held.items()})


def test_equal_weights_are_equal_files(tmp_path: Path) -> None:
    model = toy.Bigram()
    for name in ("a", "b"):
        save_weights(tmp_path / name, model)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_a_file_tells_besides_its_weights_is_read_back_and_does_not_disturb_them(tmp_path: Path) -> None:
    model, path = toy.Bigram(), tmp_path / "model.safetensors"
    about = {f"file {number}": "ü" * number for number in range(9)}
    found = set()
    for _ in range(5):
        save_weights(path, model, about)
        found.add(path.read_bytes())
    assert len(found) == 1, "equal weights, equal bytes"
    assert told(path) == {"format": "pt", **about}
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == told(path)
    assert all(torch.equal(tensor, weights(model)[name]) for name, tensor in load_weights(path).items())
    for broken in (b"", b"\xff" * 99, header(b"[]"), header(b'{"__metadata__": 5}'), path.read_bytes()[:40]):
        path.write_bytes(broken)
        assert told(path) == {}, "whoever reads the weights says what is wrong"
    assert told(tmp_path / "none") == {}


def test_weights_of_another_model_are_refused_and_nothing_is_changed() -> None:
    model = toy.Bigram()
    before = {name: tensor.clone() for name, tensor in weights(model).items()}
    good = {name: tensor + 1 for name, tensor in before.items()}
    for bad, text in [
        ({**good, "extra": torch.zeros(1)}, "hold 'extra', which the model lacks; they are of another model"),
        ({name: t for name, t in good.items() if name != "out.bias"}, "lack 'out.bias', which the model has"),
        ({**good, "out.bias": torch.zeros(3)}, r"hold 'out.bias' as float32 \[3\], but the model wants float32 \[11\]"),
        ({**good, "out.bias": good["out.bias"].half()}, r"as float16 \[11\], but the model wants float32 \[11\]"),
    ]:
        with pytest.raises(CheckpointError, match=text):
            put_weights(model, bad)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(model).items())


def test_the_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights(path, toy.Bigram(dim=4))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: the weights hold 'words\.weight' as float32 \[11, 4\]"
    ):
        read_weights(path, toy.Bigram())
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"^{path}: not a safetensors file"):
        read_weights(path, toy.Bigram())


def header(text: bytes, length: int | None = None) -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a safetensors file, or cut short"),
        (pickle.dumps({"a": 1}), "not a safetensors file, or cut short; Regard loads safetensors and never pickles"),
        (b"PK\x03\x04" + bytes(400), "not a safetensors file"),
        (header(b"{}", 2**60), "not a safetensors file"),
        (header(b"not json"), "its safetensors header is wrong"),
        (header(b"[" * 100_000), "its safetensors header is wrong"),
        (header(json.dumps({str(i): {} for i in range(50_001)}).encode()), "it names more than 50000 tensors"),
        (header(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}') + bytes(4), "header is wrong"),
        (header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'), "header is wrong"),
    ],
    ids=range(9),
)
def test_foreign_and_broken_files_are_refused_with_a_sentence(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=text) as caught:
        load_weights(path)
    assert caught.value.code == 4


def test_what_is_not_a_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such file; give a \.safetensors file"):
        load_weights(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"is a folder; give a \.safetensors file"):
        load_weights(tmp_path)
    (tmp_path / ".metadata").touch()
    with pytest.raises(CheckpointError, match=r"a torch\.distributed checkpoint, which holds a pickle"):
        load_weights(tmp_path)


# ---- averaging


def test_the_average_is_the_arithmetic_mean(tmp_path: Path) -> None:
    run = toy.fresh(tmp_path, toy.config())
    held = weights(run.model)
    paths, total = [], torch.zeros(toy.WORDS, toy.DIM, dtype=torch.float64)
    for run.step in range(5):
        held["words.weight"].normal_()
        held["norm.num_batches_tracked"].fill_(run.step)
        total += held["words.weight"].cpu()
        paths.append(save(tmp_path, snapshot(run, toy.Toy(), toy.config())))
    mean = average(paths)
    assert torch.equal(mean["words.weight"], (total / 5).float())
    assert mean["norm.num_batches_tracked"] == 4
    put_weights(run.model, mean)


def test_the_average_of_equals_is_each_of_them(trained: Path) -> None:
    path = found(trained / "checkpoints")[-1]
    for name, tensor in average([path] * 7).items():
        assert torch.equal(tensor, read(path).tensors["model"][name]), name


def test_nothing_cannot_be_averaged_nor_can_two_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint to average"):
        average([])
    one, two = (
        save(
            tmp_path,
            checkpoint.Snapshot({"step": step}, {file: {name: torch.ones(1)} for file in checkpoint.TENSOR_FILES}),
        )
        for step, name in enumerate("ab")
    )
    with pytest.raises(CheckpointError, match="other weights than in step-00000000; average checkpoints of one run"):
        average([one, two])


# ---- corruption


def bit_flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def empty(path: Path, draw: random.Random) -> None:
    os.truncate(path, 0)


def delete(path: Path, draw: random.Random) -> None:
    path.unlink()


def swap(path: Path, draw: random.Random) -> None:
    other = draw.choice([p for p in path.parent.iterdir() if p != path])
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


def foreign(path: Path, draw: random.Random) -> None:
    path.write_bytes(pickle.dumps({"model": [1.0] * draw.randrange(1, 100)}))


def older(path: Path, draw: random.Random) -> None:
    shutil.copy(found(path.parent.parent)[0] / path.name, path)


def a_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def lie(path: Path, draw: random.Random) -> None:
    """The manifest says something else, without its seal being broken."""
    manifest = json.loads((path.parent / "manifest.json").read_bytes())
    name = draw.choice(sorted(manifest["files"]))
    if draw.random() < 0.5:
        manifest["files"][name]["sha256"] = draw.randbytes(32).hex()
    else:
        del manifest["files"][name]
    seal(path.parent, manifest["files"])


def forge(path: Path, draw: random.Random) -> None:
    """The manifest matches the files, but the files are nonsense."""
    name = draw.choice(["model", "optimizer", "rng", "state"])
    if name == "state":
        state = json.loads((path.parent / "state.json").read_bytes())
        del state[draw.choice(sorted(state))]
        (path.parent / "state.json").write_text(json.dumps(state))
    else:
        target = path.parent / f"{name}.safetensors"
        tensors = safetensors.torch.load(target.read_bytes())
        victim = draw.choice(sorted(tensors))
        change: Callable[[torch.Tensor], torch.Tensor] = draw.choice(
            [lambda t: t.reshape(1, 1, -1), lambda t: t.short()]
        )
        tensors[victim] = change(tensors[victim]).contiguous()
        target.write_bytes(safetensors.torch.save(tensors))
    files = {p.name: checkpoint._entry(p.read_bytes()) for p in path.parent.iterdir() if p.name != "manifest.json"}
    seal(path.parent, files)


def seal(folder: Path, files: dict[str, Any]) -> None:
    manifest = {"format": 1, "files": files, "seal": checkpoint._seal(1, files)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


MUTATIONS = [bit_flip, truncate, empty, delete, swap, foreign, older, a_folder, lie, forge]


def assert_nothing_wrong_is_loaded(trained: Path, folder: Path, number: int) -> None:
    """Damage to the newest checkpoint is seen, and the one before it is taken; or it was none, and nothing is lost."""
    draw = random.Random(number)
    shutil.copytree(trained, folder)
    run = toy.fresh(folder, toy.config())
    *_, before, newest = found(run.checkpoints)
    good = {path.name: read(path) for path in (before, newest)}
    mutate = MUTATIONS[number % len(MUTATIONS)]
    mutate(draw.choice(sorted(newest.iterdir())), draw)
    said: list[str] = []
    resume(run, toy.Toy(), toy.config(), said.append)
    path = newest if newest.exists() else before
    if path == before:
        assert "it was set aside as .corrupt-step-00000020" in said[0]
        assert (run.checkpoints / ".corrupt-step-00000020").is_dir()
    loaded = snapshot(run, toy.Toy(), toy.config())
    for name, tensors in good[path.name].tensors.items():
        for key, tensor in tensors.items():
            assert torch.equal(loaded.tensors[name][key].cpu(), tensor), f"{mutate.__name__}: {name}/{key}"
    assert loaded.state == good[path.name].state


def test_a_run_does_not_go_on_with_another_vocabulary(tmp_path: Path) -> None:
    settings = toy.config()

    def go(vocabulary: dict[str, str]) -> None:
        run = toy.fresh(tmp_path, settings)
        run.vocabulary = vocabulary
        resume(run, toy.Toy(), settings, print)

    toy.go(tmp_path)
    go({})
    with pytest.raises(CheckpointError, match=r"not the one that it was trained with; put that back, or train into a"):
        go({"tokenizer.json": "another"})
    for path in found(tmp_path / "checkpoints"):
        state = {key: value for key, value in read(path).state.items() if key != "vocabulary"}
        save(tmp_path / "checkpoints", checkpoint.Snapshot(state, read(path).tensors))
    go({"tokenizer.json": "of an older checkpoint, which says nothing of it"})


def test_a_checkpoint_that_knows_of_no_plateau_is_none_the_worse(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    run = toy.fresh(tmp_path / "run", toy.config())
    newest = found(run.checkpoints)[-1]
    state = json.loads((newest / "state.json").read_bytes())
    (newest / "state.json").write_text(json.dumps({k: v for k, v in state.items() if k not in ("recent", "cuts")}))
    files = {p.name: checkpoint._entry(p.read_bytes()) for p in newest.iterdir() if p.name != "manifest.json"}
    seal(newest, files)
    resume(run, toy.Toy(), toy.config(), pytest.fail)
    assert (run.step, run.recent, run.cuts) == (state["step"], [], 0)


@pytest.mark.parametrize("number", range(20))
def test_damage_is_seen(trained: Path, tmp_path: Path, number: int) -> None:
    assert_nothing_wrong_is_loaded(trained, tmp_path / "run", number)


@pytest.mark.storm
def test_much_damage_is_seen(trained: Path, tmp_path: Path) -> None:
    for number in range(20, 220):
        assert_nothing_wrong_is_loaded(trained, tmp_path / str(number), number)


def test_training_goes_on_from_the_checkpoint_before_to_the_same_end(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    (folder / "model.safetensors").unlink()
    truncate(found(folder / "checkpoints")[-1] / "optimizer.safetensors", random.Random(0))
    toy.go(folder)
    assert (folder / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_a_run_whose_every_checkpoint_is_corrupt_is_not_begun_anew(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for path in found(folder / "checkpoints"):
        empty(path / "manifest.json", random.Random(0))
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match="every checkpoint is corrupt and was set aside; put a good copy back"
        ):
            toy.go(folder)


def test_a_flipped_version_is_damage_and_not_another_version(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    manifest = found(folder / "checkpoints")[-1] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 3'))
    toy.go(folder)
    assert (folder / "checkpoints" / ".corrupt-step-00000020").is_dir()


def test_a_checkpoint_of_another_version_is_refused_but_not_called_corrupt(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    newest = found(folder / "checkpoints")[-1]
    manifest = json.loads((newest / "manifest.json").read_bytes())
    manifest |= {"format": 2, "seal": checkpoint._seal(2, manifest["files"])}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="format 2, but this version of Regard reads format 1") as caught:
        toy.go(folder)
    assert not isinstance(caught.value, Corrupt)
    assert newest.exists()
