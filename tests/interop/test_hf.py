"""Folders of Hugging Face, in as runs like any other, and out again."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from interop.foreign import save
from interop.made import made, sharpen
from rich.console import Console

from regard import run
from regard.config import make_recipe
from regard.errors import CheckpointError, ConfigError
from regard.interop.hf import export_folder, import_folder, load_folder, numbers, write_run
from regard.models import schema
from regard.pipeline import load
from regard.weights import load_weights

POST = {"norm": "post", "positions": "halves"}
BERT = {"context": 40}
OURS: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("transformer", "rewrite", {**POST, "bias": True, "head_bias": True}, "MarianMTModel", "a dog"),
    ("transformer", "rewrite", {"norm": "post"}, "MarianMTModel", "a dog"),
    (
        "transformer", "rewrite",
        {"positions": "learned", "source_positions": "own", "offset": 2, "embedding_norm": True, "context": 80},
        "BartForConditionalGeneration", "a dog",
    ),
    ("gpt", "language", {"context": 60}, "GPT2LMHeadModel", "a dog"),
    ("gpt", "language", {"context": 60, "bias": False, "tied": False}, "GPT2LMHeadModel", "a dog"),
    ("gpt", "language", {"context": 60, "norm": "post", "hidden": 96}, "OpenAIGPTLMHeadModel", "a dog"),
    ("bert", "classify", {**BERT, "head": "sentence", "labels": 3}, "BertForSequenceClassification", "a dog"),
    (
        "bert", "classify", {**BERT, "head": "sentence", "labels": 3, "pooler": "relu", "segments": 0},
        "DistilBertForSequenceClassification", "a dog",
    ),
    (
        "bert", "classify", {**BERT, "head": "sentence", "labels": 3, "offset": 1},
        "RobertaForSequenceClassification", "a dog",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("system", "task", "model", "architecture", "text"), OURS)
def test_a_run_goes_out_and_comes_back_with_the_same_answers(
    system: str, task: str, model: dict[str, Any], architecture: str, text: str, tmp_path: Path
) -> None:
    ours = made(system, task, **model)
    export_folder(ours, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text("utf-8"))["architectures"] == [architecture]
    imported = import_folder(tmp_path / "hf")
    assert imported.unknown == ()
    write_run(imported, tmp_path / "run")
    back = load(tmp_path / "run", device="cpu")
    how = {"longest": 8, "beam": 1} if task != "classify" else {}
    (wanted,), (found,) = ours.ask([text], **how), back.ask([text], **how)
    assert found.text == wanted.text
    assert found.score == pytest.approx(wanted.score, abs=1e-5)


def test_a_run_that_was_imported_is_a_run_like_any_other(tmp_path: Path) -> None:
    """Asked, and begun with: fine-tuning takes its vocabulary and all of its weights but for the new layer."""
    export_folder(made("bert", "masked", head="pretrain", **BERT), tmp_path / "hf")
    write_run(import_folder(tmp_path / "hf"), tmp_path / "run")
    (tmp_path / "some.tsv").write_text("a dog\tone\nthe beach\ttwo\n" * 8, "utf-8")
    recipe = {
        "system": "bert", "task": {"name": "classify"}, "data": {"train": [str(tmp_path / "some.tsv")], "longest": 30},
        "model": import_folder(tmp_path / "hf").recipe.model.model_dump(exclude={"head"}, exclude_none=True),
        "train": {"begin": str(tmp_path / "run"), "steps": 1, "tokens": 64, "rate": 1e-9, "warmup": 0, "threads": 1},
    }  # fmt: skip
    run.start(make_recipe(recipe, schema), tmp_path / "fine", Console(quiet=True))
    before, after = (load_weights(tmp_path / name / "model.safetensors") for name in ("run", "fine"))
    assert torch.allclose(before["encoder.1.attention.value.weight"], after["encoder.1.attention.value.weight"])
    assert load(tmp_path / "fine", device="cpu").ask(["a dog"])[0].json["label"] in ("one", "two")


@pytest.mark.parametrize(
    ("architecture", "task", "settings"),
    [
        ("BertForPreTraining", "masked", {"next_sentence": True}),
        ("DistilBertForMaskedLM", "masked", {"next_sentence": False}),
        ("RobertaForSequenceClassification", "classify", {"kind": "label"}),
        ("BertForTokenClassification", "tag", {"scheme": "plain"}),
        ("BertForQuestionAnswering", "span", {}),
        ("GPT2LMHeadModel", "language", {}),
        ("MarianMTModel", "rewrite", {}),
    ],
)
def test_an_architecture_says_what_is_asked(
    architecture: str, task: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    save(architecture, tmp_path, 1)
    recipe = import_folder(tmp_path).recipe
    assert recipe.task.name == task
    assert settings.items() <= recipe.task.model_dump().items()
    assert recipe.title == f"{architecture} from {tmp_path.name}"


def test_labels_keep_their_names_and_order(tmp_path: Path) -> None:
    save("BertForTokenClassification", tmp_path / "a", 1)
    config = json.loads((tmp_path / "a" / "config.json").read_text("utf-8"))
    names = ["O", "B-X", "I-X", "B-Y", "I-Y"][: len(config["id2label"])]
    config["id2label"] = {str(i): name for i, name in enumerate(names)}
    (tmp_path / "a" / "config.json").write_text(json.dumps(config), "utf-8")
    recipe = import_folder(tmp_path / "a").recipe
    assert list(recipe.data.labels) == names  # type: ignore[attr-defined]
    assert recipe.task.scheme == "iob2"  # type: ignore[attr-defined]
    export_folder(import_folder(tmp_path / "a"), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text("utf-8"))["id2label"] == config["id2label"]


@pytest.mark.parametrize(("said", "longest"), [(9, 9), (9_999, None), ("9", None), (-1, None)])
def test_a_text_is_cut_where_sentence_transformers_cuts_it(said: object, longest: int | None, tmp_path: Path) -> None:
    save("BertModel", tmp_path / "a", 1)
    context = import_folder(tmp_path / "a").recipe.data.longest
    (tmp_path / "a" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": said}), "utf-8")
    assert import_folder(tmp_path / "a").recipe.data.longest == (longest or context)


def test_one_label_is_a_number(tmp_path: Path) -> None:
    ours = made("bert", "classify", head="sentence", labels=1, **BERT)
    recipe = make_recipe(
        {**ours.recipe.model_dump(exclude_none=True), "task": {"name": "classify", "kind": "number"},
         "data": {"train": ["x.tsv"]}},
        schema,
    )  # fmt: skip
    export_folder(type(ours)(recipe, ours.model, ours.tokenizers, ours.folder), tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text("utf-8"))
    assert config["problem_type"] == "regression"
    back = load_folder(tmp_path / "hf", device="cpu")
    assert back.recipe.task.kind == "number"  # type: ignore[attr-defined]
    assert back("a dog") == pytest.approx(type(ours)(recipe, ours.model, ours.tokenizers, ours.folder)("a dog"))


# ------------------------------------------------------------------ how to decode


def generation(folder: Path, **settings: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def test_a_search_is_taken_over_by_its_known_settings(tmp_path: Path) -> None:
    save("MarianMTModel", tmp_path)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert import_folder(tmp_path).recipe.decode.beam == 1  # greedy, where nothing is said
    found = import_folder(
        generation(tmp_path, num_beams=6, length_penalty=0.8, max_length=512, no_repeat_ngram_size=3, watermark="x")
    )
    decode = found.recipe.decode
    assert (decode.beam, decode.penalty, decode.alpha, decode.longest) == (6, "average", 0.8, 511)
    assert decode.block_ngram == 3
    assert found.unknown == ("generation_config.json: watermark",)
    drawn = import_folder(generation(tmp_path, do_sample=True, top_p=0.9, temperature=0.7)).recipe.decode
    assert (drawn.sample, drawn.top_p, drawn.temperature, drawn.top_k) == (True, 0.9, 0.7, 50)
    with pytest.raises(ConfigError, match=r"decode.beam: must be less than or equal to 1024"):
        import_folder(generation(tmp_path, num_beams=10**9))


@pytest.mark.parametrize("apart", [True, False])
def test_what_changes_answers_there_and_nothing_here_is_told(apart: bool, tmp_path: Path) -> None:
    save("MarianMTModel", tmp_path, pad_token_id=1, eos_token_id=2, forced_eos_token_id=None)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))

    def unknown(**settings: Any) -> list[str]:
        if apart:
            return [
                name.removeprefix("generation_config.json: ")
                for name in import_folder(generation(tmp_path, **settings)).unknown
            ]
        (tmp_path / "config.json").write_text(json.dumps({**config, **settings}), "utf-8")
        return [*import_folder(tmp_path).unknown]

    nothing = {"bad_words_ids": [[1]], "eos_token_id": 2, "early_stopping": False, "forced_eos_token_id": None}
    assert unknown(**nothing, renormalize_logits=False, length_penalty=1.0, max_length=512) == []
    for key, value in {
        "bad_words_ids": [[3, 4]], "eos_token_id": [2, 3], "early_stopping": "never", "forced_eos_token_id": 2,
        "renormalize_logits": True, "length_penalty": -1.0, "max_length": 10**6, "max_new_tokens": "many",
    }.items():  # fmt: skip
        assert unknown(**{key: value}) == [key]
    assert unknown(length_penalty="much") == ["length_penalty"]


def test_a_search_goes_out_as_it_came(tmp_path: Path) -> None:
    import transformers

    said = {"num_beams": 5, "length_penalty": 0.5, "max_length": 99, "min_length": 4, "no_repeat_ngram_size": 2}
    save("BartForConditionalGeneration", tmp_path / "a")
    export_folder(load_folder(generation(tmp_path / "a", **said), device="cpu"), tmp_path / "b")
    found = json.loads((tmp_path / "b" / "generation_config.json").read_text("utf-8"))
    assert said.items() <= found.items()
    assert transformers.GenerationConfig.from_pretrained(tmp_path / "b").num_beams == 5


# ------------------------------------------------------------------ without a head, and without a vocabulary


def test_an_encoder_without_a_head_answers_with_vectors(tmp_path: Path) -> None:
    export_folder(made("bert", "masked", head="none", **BERT), tmp_path / "hf")
    ours = load(tmp_path / "hf", device="cpu")  # a foreign folder is asked like a run
    (said,) = ours.ask(["a dog"])
    assert torch.allclose(torch.tensor(said.json["vector"]), ours.embed(["a dog"])[0])
    assert torch.equal(ours("a dog"), ours.embed(["a dog"])[0])
    assert ours.look("a dog").source[1:-1] == tuple("a▁dog")
    ours.check(ours.example("a dog"))
    with pytest.raises(ConfigError, match=r'model.head = "none": there is nothing to measure'):
        ours.measure("test", [], {}, say=print, progress=lambda *_: None)


def test_what_reads_cannot_be_asked_without_its_vocabulary(tmp_path: Path) -> None:
    save("BertForMaskedLM", tmp_path / "hf")
    imported = import_folder(tmp_path / "hf")  # the weights are there all the same
    for ask in (lambda: write_run(imported, tmp_path / "run"), lambda: load(tmp_path / "hf", device="cpu")):
        with pytest.raises(CheckpointError, match=r"put tokenizer.json or vocab.txt beside config.json"):
            ask()
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_vocabulary_is_asked_in_numbers() -> None:
    one = numbers(3, {})
    assert one.encode("2 0 1 x 3") == [2, 0, 1]
    assert one.decode([0, 2, 2]) == "0 2 2"
    assert one.marks.end == one.marks.pad == 3  # outside of the model: nothing ends
    ends = numbers(5, {"eos_token_id": 4, "pad_token_id": 0, "bos_token_id": 4})
    assert ends.size == 5
    assert ends.encode("0 1 4 7 2") == [1, 2]
    assert ends.marks.end == 4


@pytest.mark.data("weights")
def test_a_trained_gpt2_sorts_whatever_it_is_given(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    folder = data_dir("weights") / "gpt2-nano-sort"
    write_run(import_folder(folder), tmp_path / "run")
    sorter = load(tmp_path / "run", device="cpu")
    texts = [" ".join(some) for some in product("012", repeat=6)]
    answers = sorter(texts, longest=6)
    assert [answer.split() for answer in answers] == [sorted(text.split()) for text in texts]
    export_folder(sorter, tmp_path / "back")
    old, new = (load_weights(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)


# ------------------------------------------------------------------ what cannot be said there


@pytest.mark.parametrize(
    ("system", "model", "sentence"),
    [
        ("seq2seq", {}, "a seq2seq has no family at Hugging Face; export a bert, a gpt or a transformer"),
        ("transformer", {"norm": "pre"}, 'model.norm: a Transformer at Hugging Face has "post", but it is "pre"'),
        ("transformer", {"score": "additive"}, 'model.score: .* has "scaled_dot", but it is "additive"'),
        ("gpt", {"norm": "post", "hidden": 40}, "model.hidden: a GPT-1 has 4 · dim = 96, but it is 40"),
        ("bert", {"head": "masked", "segments": 0, "epsilon": 0.1}, "model.epsilon: a DistilBERT has 1e-12"),
    ],
)
def test_what_no_family_can_say_is_refused(system: str, model: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        export_folder(made(system, **model), tmp_path / "hf")
    assert not any(tmp_path.iterdir())


def test_two_vocabularies_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    ours = made("transformer", joint=False, norm="post", tied="target")
    with pytest.raises(ConfigError, match="each side has a vocabulary of its own"):
        export_folder(ours, tmp_path / "hf")
    assert not any(tmp_path.iterdir())


def test_a_sentence_begins_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save("BertModel", Path("bert"))
    config = json.loads(Path("bert/config.json").read_text("utf-8"))
    Path("bert/config.json").write_text(json.dumps({**config, "is_decoder": True}), "utf-8")
    with pytest.raises(ConfigError, match=r"^bert: is_decoder: True of the family 'bert'"):
        import_folder("bert")
    Path("bert/model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"^bert has no model.safetensors"):
        import_folder("bert")


def test_no_half_written_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made("gpt", context=30)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.interop.hf.write_tokenizers", full)
    with pytest.raises(Exception, match="cannot be written: No space left on device"):
        export_folder(ours, tmp_path / "hf")
    assert not any(tmp_path.iterdir())
    monkeypatch.undo()
    export_folder(ours, tmp_path / "hf")
    with pytest.raises(ConfigError, match="is there already"):
        export_folder(ours, tmp_path / "hf")


def test_a_model_is_not_changed_by_being_exported(tmp_path: Path) -> None:
    ours = made("bert", "masked", head="masked", **BERT)
    sharpen(ours.model)
    before = {name: tensor.clone() for name, tensor in ours.model.state_dict().items()}
    export_folder(ours, tmp_path / "hf")
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.model.state_dict().items())
