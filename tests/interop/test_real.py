"""A trained GPT-2 of somebody else's sorts all 729 inputs, wherever it runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import ctranslate2
import numpy as np
import onnxruntime
import pytest

from regard.cli import main
from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.hf import export_folder, import_folder, load_folder, write_run
from regard.interop.onnx import export_onnx
from regard.interop.parity import report
from regard.pipeline import Pipeline, load

pytestmark = pytest.mark.data("weights")

INPUTS = [" ".join(some) for some in product("012", repeat=6)]
SORTED = [sorted(text.split()) for text in INPUTS]


@pytest.fixture(scope="module")
def folder(data_dir: Callable[[str], Path]) -> Path:
    return data_dir("weights") / "gpt2-nano-sort"


@pytest.fixture(scope="module")
def sorter(folder: Path) -> Pipeline:
    return load_folder(folder, device="cpu")


def answers(sorter: Pipeline) -> list[list[str]]:
    return [answer.split() for answer in sorter(INPUTS, longest=6)]


def test_its_numbers_are_those_of_transformers(sorter: Pipeline, folder: Path) -> None:
    pytest.importorskip("transformers")
    assert 0 < report(sorter, folder).largest < 1e-5


def test_it_sorts_as_it_came_and_after_every_way_round(sorter: Pipeline, folder: Path, tmp_path: Path) -> None:
    assert answers(sorter) == SORTED
    write_run(import_folder(folder), tmp_path / "run")
    export_folder(tmp_path / "run", tmp_path / "hf")
    write_run(import_folder(tmp_path / "hf"), tmp_path / "again")
    assert answers(load(tmp_path / "again", device="cpu")) == SORTED
    first, last = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "again"))
    assert first == last


def test_predict_sorts(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    capsys.readouterr()
    main(["predict", str(tmp_path / "run"), "2 0 1 1 0 2", "--longest", "6"])
    assert "0 0 1 1 2 2" in capsys.readouterr().out


@pytest.mark.parametrize("beam", [1, 3])
def test_it_sorts_in_ctranslate2(sorter: Pipeline, beam: int, tmp_path: Path) -> None:
    check = export_ctranslate2(sorter, tmp_path / "out")
    assert check.equal == check.of
    engine = ctranslate2.Generator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    told = json.loads((tmp_path / "out" / "regard.json").read_text("utf-8"))
    found = engine.generate_batch(
        [text.split() for text in INPUTS],
        beam_size=beam, sampling_topk=1, max_length=6, include_prompt_in_result=False, end_token=[],
        suppress_sequences=told["suppress_sequences"] or None,
    )  # fmt: skip
    assert [answer.sequences[0] for answer in found] == SORTED


@pytest.mark.storm
def test_it_sorts_in_onnxruntime(sorter: Pipeline, tmp_path: Path) -> None:
    export_onnx(sorter, tmp_path / "out")
    graph = next((tmp_path / "out").glob("*.onnx"))
    engine = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    first, *held = (one.name for one in engine.get_inputs())
    shapes = [[size if isinstance(size, int) else 0 for size in one.shape] for one in engine.get_inputs()[1:]]
    past = [np.zeros([len(INPUTS), *shape[1:]], np.float32) for shape in shapes]
    tokens, said = np.array([[int(digit) for digit in text.split()] for text in INPUTS]), []
    for _ in range(6):
        logits, *past = engine.run(None, {first: tokens, **dict(zip(held, past, strict=True))})
        tokens = logits[:, -1:].argmax(-1)
        said.append(tokens)
    assert [[str(digit) for digit in row] for row in np.concatenate(said, 1)] == SORTED
