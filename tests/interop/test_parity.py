"""The report tells how far two models are apart, and where they begin to be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from interop.foreign import save
from rich.console import Console
from safetensors.torch import save_file

from regard.errors import RegardError
from regard.interop import parity
from regard.interop.hf import import_folder, write_run
from regard.interop.parity import report
from regard.weights import load_weights

LAYERS = {
    "BertForPreTraining": ["encoder.0", "encoder.1", "next", "logits"],
    "BertModel": ["encoder.0", "encoder.1", "summary"],
    "DistilBertModel": ["encoder.0", "encoder.1"],
    "GPT2LMHeadModel": ["blocks.0", "blocks.1", "logits"],
    "MarianMTModel": ["encoder.0", "encoder.1", "decoder.0", "decoder.1", "logits"],
}
TWO = {"Bert": "num_hidden_layers", "Dist": "n_layers", "GPT2": "n_layer", "Mari": "encoder_layers"}


def two_layers(architecture: str) -> dict[str, int]:
    return {TWO[architecture[:4]]: 2, **({"decoder_layers": 2} if architecture == "MarianMTModel" else {})}


@pytest.mark.parametrize("architecture", LAYERS)
def test_every_layer_is_compared(architecture: str, tmp_path: Path) -> None:
    save(architecture, tmp_path, **two_layers(architecture))
    found = report(import_folder(tmp_path), tmp_path)
    assert [one.where for one in found.differences] == LAYERS[architecture]
    assert found.largest <= 1e-5
    assert f"against {architecture} of transformers" in str(found)


def test_a_pooler_that_only_theirs_has_is_not_compared(tmp_path: Path) -> None:
    save("BertModel", tmp_path, num_hidden_layers=2)
    tensors = load_weights(tmp_path / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "pooler" not in name}, tmp_path / "model.safetensors")
    found = report(import_folder(tmp_path), tmp_path)
    assert [one.where for one in found.differences] == ["encoder.0", "encoder.1"]
    assert found.largest <= 1e-5


def test_segments_are_compared(tmp_path: Path) -> None:
    save("BertModel", tmp_path, type_vocab_size=2)
    ours = import_folder(tmp_path)
    with torch.no_grad():
        ours.model.segments.weight[1].add_(torch.arange(ours.recipe.model.dim))  # type: ignore[union-attr, index]
    assert report(ours, tmp_path).largest > 1e-2


def test_a_mistake_of_ours_is_none_of_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("GPT2LMHeadModel", tmp_path)
    monkeypatch.setitem(parity.READ, "gpt", lambda *_: {}["nothing"])
    with pytest.raises(KeyError, match="nothing"):
        report(import_folder(tmp_path), tmp_path)


def test_models_with_other_layers_are_not_compared(tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path / "a", 0, vocab_size=20, n_layer=1, n_embd=6, n_head=1)
    save("GPT2LMHeadModel", tmp_path / "b", 0, vocab_size=20, n_layer=2, n_embd=6, n_head=1)
    with pytest.raises(RegardError, match=r"blocks.1 is there alone; name the folder of the same model"):
        report(import_folder(tmp_path / "a"), tmp_path / "b")


def test_of_a_run_on_disk(tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path / "hf")
    write_run(import_folder(tmp_path / "hf"), tmp_path / "run")
    assert report(tmp_path / "run", tmp_path / "hf").largest <= 1e-5


def test_it_tells_where_two_models_begin_to_differ(tmp_path: Path) -> None:
    save("MarianMTModel", tmp_path, **two_layers("MarianMTModel"))
    ours = import_folder(tmp_path)
    with torch.no_grad():
        ours.model.decoder[1].feed_forward.wide.bias.add_(0.5)  # type: ignore[index, union-attr, operator]
    far = [one.where for one in report(ours, tmp_path).differences if one.difference > 1e-3]
    assert far == ["decoder.1", "logits"]


def test_it_is_a_small_table(tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path, **two_layers("GPT2LMHeadModel"))
    console = Console(width=80)
    with console.capture() as said:
        console.print(report(import_folder(tmp_path), tmp_path).table())
    lines = said.get().splitlines()
    assert [line.split()[0] for line in lines] == ["after", "blocks.0", "blocks.1", "logits"]


def test_without_transformers_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("GPT2LMHeadModel", tmp_path)
    ours = import_folder(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    found = report(ours, tmp_path)
    assert str(found) == "nothing was compared, since transformers is not there; write pip install transformers"


def test_models_of_another_shape_are_not_compared(tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path / "a", 0, vocab_size=20, n_layer=1, n_embd=6, n_head=1)
    save("GPT2LMHeadModel", tmp_path / "b", 0, vocab_size=20, n_layer=1, n_embd=8, n_head=1)
    with pytest.raises(RegardError, match=r"blocks.0 has the shape .* here and .* there"):
        report(import_folder(tmp_path / "a"), tmp_path / "b")
