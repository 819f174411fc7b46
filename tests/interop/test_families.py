"""Every family, in shapes nobody would choose: the numbers are the original's, and there and back is the identity."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from interop.foreign import ARCHITECTURES, save
from torch import Tensor

from regard.errors import CheckpointError, ConfigError
from regard.interop.family import FLAT, SAME, THIRDS, TRANSPOSED, Turn
from regard.interop.hf import FAMILIES, export_folder, family_named, import_folder
from regard.interop.parity import report
from regard.models import schema
from regard.weights import encode, load_weights

FIRST = {family: name for name, family in reversed(ARCHITECTURES.items())}  # an architecture of each
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
every_family = pytest.mark.parametrize("family", FIRST)


def change(folder: Path, **settings: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **settings}), "utf-8")
    return folder


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> Path:
    (folder / "model.safetensors").write_bytes(encode(tensors))
    return folder


@every_architecture
@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3, 4, 5, 6), marks=pytest.mark.storm)])
def test_the_numbers_are_the_originals_and_there_and_back_is_the_identity(
    architecture: str, seeds: tuple[int, ...], tmp_path: Path
) -> None:
    for seed in seeds:
        folder, back = tmp_path / f"{seed}", tmp_path / f"{seed} back"
        save(architecture, folder, seed)
        ours = import_folder(folder)
        found = report(ours, folder)
        assert found.largest <= 1e-5, (seed, found)
        assert all(one.scale > 1e-3 for one in found.differences)

        export_folder(ours, back)
        old, new = (load_weights(place / "model.safetensors") for place in (folder, back))
        unread = {"model.shared.weight"} if architecture == "MarianMTModel" else set()
        assert old.keys() - unread == new.keys() - unread
        assert all(torch.equal(old[name], new[name]) for name in old.keys() & new.keys())
        loaded, told = getattr(transformers, architecture).from_pretrained(back, output_loading_info=True)
        assert type(loaded).__name__ == architecture
        assert not any(told[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), told


@every_family
def test_a_folder_that_was_written_is_read_as_the_same_model(family: str, tmp_path: Path) -> None:
    save(FIRST[family], tmp_path / "theirs", 1)
    first = import_folder(tmp_path / "theirs")
    export_folder(import_folder(tmp_path / "theirs"), tmp_path / "back")
    second = import_folder(tmp_path / "back")
    assert second.recipe.model == first.recipe.model
    assert second.recipe.task == first.recipe.task
    assert second.unknown == ()


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize(
    ("turn", "shape"),
    [(SAME, (3, 4)), (TRANSPOSED, (3, 4)), (TRANSPOSED, (5,)), (FLAT, (1, 7)), (THIRDS, (4, 12)), (THIRDS, (12,))],
)
def test_a_turn_can_be_undone(turn: Turn, shape: tuple[int, ...]) -> None:
    theirs = torch.randn(shape)
    assert torch.equal(turn.write(turn.read(theirs)), theirs)


@every_family
def test_a_key_of_theirs_is_a_setting_of_ours(family: str) -> None:
    table = family_named(family)
    known = schema(table.system).model_fields
    assert {key.ours for key in table.keys.values()} <= known.keys()
    assert {name for one in table.architectures.values() for name in one.model} <= known.keys()
    assert set(table.activations.values()) <= set(known["activation"].annotation.__args__)  # type: ignore[union-attr]


@every_family
def test_what_they_leave_out_means_what_it_means_there(family: str) -> None:
    """transformers writes no setting that is at its default, and neither may our defaults differ."""
    config = getattr(transformers, type(getattr(transformers, FIRST[family]).config_class()).__name__)()
    for theirs, key in family_named(family).keys.items():
        assert getattr(config, theirs) == key.default, theirs


def test_every_family_has_an_architecture_that_is_tested() -> None:
    assert set(FIRST) == set(FAMILIES)
    assert {name for kind in FAMILIES for name in family_named(kind).architectures} == set(ARCHITECTURES)


# ------------------------------------------------------------------ what older programs wrote


def test_names_of_older_files(tmp_path: Path) -> None:
    save("BertForMaskedLM", tmp_path, tie_word_embeddings=True)
    wanted = import_folder(tmp_path).model.state_dict()
    tensors = load_weights(tmp_path / "model.safetensors")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old |= {
        "bert.embeddings.position_ids": torch.arange(40)[None],
        "cls.predictions.decoder.weight": words.clone(),
        "bert.pooler.dense.weight": torch.zeros(2, 2),
    }
    found = import_folder(rewrite(tmp_path, old))
    assert all(torch.equal(wanted[name], tensor) for name, tensor in found.model.state_dict().items())
    assert found.unknown == ("bert.pooler.dense.weight",)
    near = report(found, tmp_path)
    assert near.differences
    assert near.largest <= 1e-5


def test_a_body_without_its_prefix(tmp_path: Path) -> None:
    """As the first GPT-2 that was published has it, with the masks of its attention."""
    save("GPT2LMHeadModel", tmp_path, tie_word_embeddings=True)
    wanted = import_folder(tmp_path).model.state_dict()
    tensors = load_weights(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    found = import_folder(rewrite(tmp_path, {**bare, "h.0.attn.bias": torch.ones(1, 1, 4, 4)}))
    assert all(torch.equal(wanted[name], tensor) for name, tensor in found.model.state_dict().items())


def test_a_head_that_the_configuration_does_not_tell_of(tmp_path: Path) -> None:
    save("BertForPreTraining", tmp_path)
    found = import_folder(change(tmp_path, architectures=["BertForMaskedLM"])).recipe
    assert found.model.head == "pretrain"  # type: ignore[attr-defined]
    assert found.task.next_sentence  # type: ignore[attr-defined]
    near = report(import_folder(tmp_path), tmp_path)
    assert near.against.startswith("BertForPreTraining of transformers")
    assert near.differences
    assert near.largest <= 1e-5


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("BertForMaskedLM", "cls.predictions.bias"),
        ("RobertaForMaskedLM", "lm_head.bias"),
        ("BartForConditionalGeneration", "model.shared.weight"),
    ],
)
def test_a_tensor_that_nobody_uses_is_told(architecture: str, name: str, tmp_path: Path) -> None:
    save(architecture, tmp_path, tie_word_embeddings=False)
    assert name not in import_folder(tmp_path).unknown
    tensors = load_weights(tmp_path / "model.safetensors")
    ours = import_folder(rewrite(tmp_path, {**tensors, name: tensors[name] + 1}))
    assert name in ours.unknown
    assert report(ours, tmp_path).largest <= 1e-4


def test_half_precision_is_read_as_single(tmp_path: Path) -> None:
    save("RobertaModel", tmp_path)
    tensors = load_weights(tmp_path / "model.safetensors")
    for dtype in (torch.float16, torch.bfloat16):
        halves = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        words = import_folder(rewrite(tmp_path, halves)).model.state_dict()["words.weight"]
        assert torch.equal(words, halves["embeddings.word_embeddings.weight"].float())


def test_waves_of_the_paper_go_along(tmp_path: Path) -> None:
    """A Marian has all sines first. Ours may have the paper's, and then the table is in the file."""
    save("MarianMTModel", tmp_path / "theirs", share_encoder_decoder_embeddings=True)
    ours = import_folder(tmp_path / "theirs")
    for positions in ("halves", "sinusoidal"):
        config = ours.recipe.model.model_copy(update={"positions": positions, "bias": False})
        model = type(ours.model)(config)  # type: ignore[call-arg]
        recipe = ours.recipe.model_copy(update={"model": config})
        run = replace(ours, recipe=recipe, model=model.eval())
        export_folder(run, tmp_path / positions)
        assert report(run, tmp_path / positions).largest <= 1e-5
        found = import_folder(tmp_path / positions).recipe.model
        assert found.positions == positions  # type: ignore[attr-defined]
    tensors = load_weights(tmp_path / "sinusoidal" / "model.safetensors")
    learned = {name: tensor + 0.1 if "embed_positions" in name else tensor for name, tensor in tensors.items()}
    with pytest.raises(CheckpointError, match="holds no waves of sines and cosines"):
        import_folder(rewrite(tmp_path / "sinusoidal", learned))


# ------------------------------------------------------------------ what does not fit


@pytest.mark.parametrize(
    ("architecture", "settings", "sentence"),
    [
        ("BertModel", {"model_type": "t5"}, "model_type: no family 't5' is known; known: bart, bert, "),
        ("BertModel", {"model_type": None}, "no family None is known"),
        ("BertModel", {"architectures": ["BertForNextSentence"]}, "did you mean 'BertForPreTraining'|is not known"),
        (
            "BertModel",
            {"architectures": "BertModel"},
            r'names none; write "architectures": \["BertForPre.*, BertModel$',
        ),
        ("BertModel", {"hidden_size": 10**12}, "hidden_size: must be less than or equal to 65536, but it is"),
        ("BertModel", {"num_hidden_layers": -1}, "num_hidden_layers: must be greater than or equal to 1"),
        ("BertModel", {"hidden_size": [1]}, "hidden_size: must be a valid integer"),
        ("BertModel", {"hidden_size": 6, "num_attention_heads": 5}, "dim=6 does not divide into heads=5; try heads=3"),
        ("BertModel", {"hidden_act": "mish"}, "hidden_act: no activation 'mish'; did you mean 'swish'[?]"),
        ("BertModel", {"position_embedding_type": "relative_key"}, "wanted is 'absolute'"),
        ("BertModel", {"is_decoder": True}, "is_decoder: True of the family 'bert' is not known; wanted is False"),
        ("BertModel", {"num_hidden_layers": 9}, "lacks '.*' and .* more, which its bert model has"),
        (
            "BertModel",
            {"vocab_size": 5},
            "has the shape .* but config.json means .*; fetch config.json and the weights of one",
        ),
        (
            "BertForSequenceClassification",
            {"id2label": {"0": "a", "7": "b"}},
            "must name the labels 0, 1, 2 and so on, each otherwise",
        ),
        ("BertForSequenceClassification", {"id2label": {"0": "a", "1": "a"}}, "must name the labels .* each otherwise"),
        ("BertForSequenceClassification", {"id2label": None, "num_labels": 10**9}, "num_labels: 1000000000 came"),
        ("BertForSequenceClassification", {"problem_type": "multi_label_classification"}, "several labels of one text"),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "wanted is False"),
        ("RobertaModel", {"pad_token_id": 900}, "a number below those of the positions is wanted"),
        ("RobertaForMaskedLM", {"hidden_act": "relu"}, "a RoBERTa guesses tokens with gelu"),
        ("BartForConditionalGeneration", {"decoder_ffn_dim": 41}, "as wide on both sides"),
        ("BartForConditionalGeneration", {"normalize_before": True}, "normalize_before: True of the family 'bart'"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    architecture: str, settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    save(architecture, tmp_path)
    with pytest.raises((ConfigError, CheckpointError), match=sentence) as error:
        import_folder(change(tmp_path, **settings))
    assert str(tmp_path) in str(error.value)


def test_what_is_not_known_is_listed_and_not_acted_on(tmp_path: Path) -> None:
    save("BertForMaskedLM", tmp_path)
    before = import_folder(tmp_path)
    code = {"AutoModel": "evil.py--Model"}
    after = import_folder(change(tmp_path, auto_map=code, custom="x", quantization_config={"bits": 4}))
    assert before.unknown == ()
    assert after.unknown == ("auto_map", "custom", "quantization_config")
    assert after.recipe.model == before.recipe.model


def test_tensors_that_are_too_few_or_too_many_are_named(tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path, tie_word_embeddings=True)
    tensors = load_weights(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"the file has 'lora.weight', which its gpt2 model lacks"):
        import_folder(rewrite(tmp_path, {**tensors, "lora.weight": torch.ones(2)}))
    other = {"lm_head.weight": tensors["transformer.wte.weight"] + 1}
    with pytest.raises(CheckpointError, match=r"differ, but config.json says that they are tied"):
        import_folder(rewrite(tmp_path, {**tensors, **other}))
    double = {name: tensor.double() for name, tensor in tensors.items()}
    del tensors["transformer.ln_f.bias"]
    with pytest.raises(CheckpointError, match=r"the file lacks 'transformer.ln_f.bias', which its gpt2 model has"):
        import_folder(rewrite(tmp_path, tensors))
    with pytest.raises(CheckpointError, match=r"'transformer.+' is F64, but weights are read as F32, F16"):
        import_folder(rewrite(tmp_path, double))
