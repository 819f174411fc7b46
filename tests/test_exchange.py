"""Weights in and out, as a person types it: import, ask, export."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
import transformers
from interop.foreign import save, speak
from interop.page import run_page

import regard
from regard.cli import main
from regard.interop import hub
from regard.interop.hf import import_folder

Said = Callable[..., str]
TEXT = "Two young males are outside"


# ---- every kind, asked in words, against what transformers itself computes

Reply = dict[str, Any]
Words = Any  # their tokenizer


def rewritten(model: Any, words: Words, reply: Reply) -> None:
    given = words(TEXT, return_tensors="pt")
    silent = [[mark] for mark in {words.pad_token_id, words.bos_token_id, words.mask_token_id} - {None}]
    opening = 0 if model.generation_config.forced_bos_token_id is None else 1
    found = model.generate(
        **given, num_beams=1, do_sample=False, max_new_tokens=12 + opening, bad_words_ids=silent
    )  # fmt: skip
    assert reply["answers"][0]["text"] == words.decode(found[0], skip_special_tokens=True)


def continued(model: Any, words: Words, reply: Reply) -> None:
    given = words(TEXT, return_tensors="pt")
    found = model.generate(**given, do_sample=False, max_new_tokens=12, pad_token_id=0)[0]
    assert reply["source"] == TEXT
    whole = TEXT + reply["answers"][0]["text"]
    assert whole.casefold() == words.decode(found, skip_special_tokens=True).casefold()  # GPT-1 has no capitals


def filled(model: Any, words: Words, reply: Reply) -> None:
    given = words(reply["source"].replace(" <mask>", words.mask_token), return_tensors="pt")  # which takes the space
    found = model(**given)
    logits = found["prediction_logits" if "prediction_logits" in found else "logits"]
    at = given["input_ids"][0].tolist().index(words.mask_token_id)
    shares = logits[0, at].softmax(-1)
    shares[words.all_special_ids] = -1
    assert reply["masks"][0][0]["piece"] == words.decode([int(shares.argmax())]).strip()
    assert reply["masks"][0][0]["probability"] == pytest.approx(float(shares.max()), rel=1e-4)


def labelled(model: Any, words: Words, reply: Reply) -> None:
    logits = model(**words(TEXT, return_tensors="pt")).logits[0]
    if len(logits) == 1:
        assert reply["number"] == pytest.approx(float(logits[0]), rel=1e-4)
        return
    assert reply["label"] == model.config.id2label[int(logits.argmax())]
    assert reply["probabilities"][reply["label"]] == pytest.approx(float(logits.softmax(-1).max()), rel=1e-4)


def tagged(model: Any, words: Words, reply: Reply) -> None:
    given = words(TEXT, return_tensors="pt")
    best = model(**given).logits[0].argmax(-1).tolist()
    place = given.word_ids()
    first = [place.index(word) for word in range(len(TEXT.split()))]
    assert reply["words"] == TEXT.split()
    assert reply["tags"] == [model.config.id2label[best[at]] for at in first]


def answered(model: Any, words: Words, reply: Reply) -> None:
    """The best span of at most thirty tokens within the passage."""
    question, passage = reply["source"].split("\t")
    given = words(question, passage, return_tensors="pt", return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")[0].tolist()
    found, side = model(**given), given.sequence_ids()
    places = [i for i, which in enumerate(side) if which == 1]
    spans = [(i, j) for i in places for j in places if i <= j < i + 30]
    i, j = max(spans, key=lambda span: float(found.start_logits[0, span[0]] + found.end_logits[0, span[1]]))
    assert reply["answers"][0]["text"] == passage[offsets[i][0] : offsets[j][1]].strip()


def embedded(model: Any, words: Words, reply: Reply) -> None:
    mean = model(**words(TEXT, return_tensors="pt")).last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.tensor(reply["vector"]), mean / mean.norm(), atol=1e-5, rtol=1e-4)


MASKED = "Two young <mask>"
ASKED = "Who are outside?\tTwo young, white males are outside near many bushes."
GREEDY = ["--beam", "1", "--longest", "12"]
KINDS: list[tuple[str, str, list[str], Callable[[Any, Words, Reply], None]]] = [
    ("MarianMTModel", TEXT, GREEDY, rewritten),
    ("BartForConditionalGeneration", TEXT, GREEDY, rewritten),
    ("GPT2LMHeadModel", TEXT, GREEDY, continued),
    ("OpenAIGPTLMHeadModel", TEXT, GREEDY, continued),
    ("BertForPreTraining", MASKED, [], filled),
    ("BertForMaskedLM", MASKED, [], filled),
    ("DistilBertForMaskedLM", MASKED, [], filled),
    ("RobertaForMaskedLM", MASKED, [], filled),
    ("BertForSequenceClassification", TEXT, [], labelled),
    ("DistilBertForSequenceClassification", TEXT, [], labelled),
    ("RobertaForSequenceClassification", TEXT, [], labelled),
    ("BertForTokenClassification", TEXT, [], tagged),
    ("DistilBertForTokenClassification", TEXT, [], tagged),
    ("RobertaForTokenClassification", TEXT, [], tagged),
    ("BertForQuestionAnswering", ASKED, [], answered),
    ("DistilBertForQuestionAnswering", ASKED, [], answered),
    ("RobertaForQuestionAnswering", ASKED, [], answered),
    ("BertModel", TEXT, [], embedded),
    ("DistilBertModel", TEXT, [], embedded),
    ("RobertaModel", TEXT, ["--embed"], embedded),
]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(("architecture", "text", "how", "same"), KINDS, ids=[kind[0] for kind in KINDS])
def test_what_is_imported_answers_as_transformers_does(
    architecture: str, text: str, how: list[str], same: Any, said: Said, tmp_path: Path
) -> None:
    model = speak(architecture, tmp_path / "hf")
    printed = said("import", tmp_path / "hf", tmp_path / "run")
    assert f"{architecture} of the family {model.config.model_type}" in printed
    assert f"against {architecture} of transformers" in printed
    words = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "hf"))
    reply = json.loads(said("predict", tmp_path / "run", text, *how, "--json"))
    with torch.inference_mode():
        same(model, words, reply)
    assert json.loads(said("predict", tmp_path / "hf", text, *how, "--json")) == reply, "asked as it lies there"


# ---- import


def test_an_import_tells_what_came_how_near_it_is_and_how_to_go_on(said: Said, tmp_path: Path) -> None:
    speak("BertForMaskedLM", tmp_path / "hf", num_hidden_layers=2, unheard_of=1, and_that=[2])
    printed = said("import", tmp_path / "hf", tmp_path / "run")
    lines = printed.splitlines()
    size = sum(p.numel() for p in import_folder(tmp_path / "hf").model.parameters())
    assert lines[0].split() == ["came", "BertForMaskedLM", "of", "the", "family", "bert,", "from", "hf"]
    assert f"a bert with {size:,} parameters, task masked" in lines[1]
    assert lines[2].split() == ["not", "looked", "at", "and_that,", "unheard_of"]
    assert [line.split()[0] for line in lines[4:8]] == ["after", "encoder.0", "encoder.1", "logits"]
    assert all(float(line.split()[1]) < 1e-5 for line in lines[5:8])
    assert f"{tmp_path / 'run'} is ready" in printed
    assert f'regard predict {tmp_path / "run"} "The <mask> is old."' in printed


def test_only_some_of_many_unknown_settings_are_named(said: Said, tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path / "hf", **{f"odd_{i:02}": i for i in range(20)})
    printed = " ".join(said("import", tmp_path / "hf", tmp_path / "run").split())
    assert "odd_07 and 12 more" in printed
    assert "odd_08" not in printed
    assert f'regard predict {tmp_path / "run"} "0 1 2"' in printed, "it came without a vocabulary"


def test_names_that_somebody_else_wrote_are_shown_as_they_are_and_do_nothing(said: Said, tmp_path: Path) -> None:
    save("GPT2LMHeadModel", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    odd = {"[red]b[/]": 1, "\x1b[31mc": 2, "d" * 1000: 3}
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **odd}))
    printed = said("import", tmp_path / "hf", tmp_path / "run")
    assert "[red]b[/]" in printed
    assert "\x1b" not in printed
    assert "d" * 100 not in "".join(printed.split())


def test_without_transformers_an_import_says_so(said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("GPT2LMHeadModel", tmp_path / "hf")
    monkeypatch.setitem(sys.modules, "transformers", None)
    printed = said("import", tmp_path / "hf", tmp_path / "run")
    assert "nothing was compared, since transformers is not there; write pip install transformers" in printed
    assert "largest difference" not in printed


def test_whatever_transformers_makes_of_a_folder_the_import_is_done(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("no such thing\nin this version")

    save("GPT2LMHeadModel", tmp_path / "hf")
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "from_pretrained", fails)
    printed = said("import", tmp_path / "hf", tmp_path / "run")
    assert "since transformers cannot read it (ValueError: no such thing in this version)" in printed
    assert regard.load(tmp_path / "run", device="cpu").ask(["0 1 2"])


def test_models_that_are_not_the_same_are_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = save("GPT2LMHeadModel", tmp_path / "hf", 1, n_layer=1)
    with torch.no_grad():
        other.transformer.h[0].mlp.c_fc.bias.add_(1)
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "from_pretrained", lambda *_, **__: other)
    assert main(["import", str(tmp_path / "hf"), str(tmp_path / "run")]) == 1
    sentence = capsys.readouterr().err
    assert "is not the same model in transformers" in sentence
    assert f"{tmp_path / 'run'} is written, but do not use it" in sentence


@pytest.mark.parametrize("architecture", ["RobertaForMaskedLM", "GPT2LMHeadModel", "BartForConditionalGeneration"])
def test_what_was_imported_is_looked_at_and_examined(architecture: str, said: Said, tmp_path: Path) -> None:
    speak(architecture, tmp_path / "hf")
    said("import", tmp_path / "hf", tmp_path / "run")
    text = MASKED if "Masked" in architecture else TEXT
    seen = json.loads(said("look", tmp_path / "run", text, "--json"))
    first = {"Roberta": "<s>", "GPT2LMH": "<|endoftext|>", "BartFor": "</s>"}[architecture[:7]]
    assert (seen["tokens"]["prefix" if architecture[0] != "R" else "source"])[0] == first, "the mark's own name"
    assert all(abs(sum(row) - 1) < 0.01 for one in seen["maps"].values() for row in one["weights"][0])
    assert all(law["holds"] for law in json.loads(said("doctor", tmp_path / "run", "--json")))


def test_a_foreign_folder_is_measured_looked_at_and_examined_as_it_lies_there(said: Said, tmp_path: Path) -> None:
    speak("BertForSequenceClassification", tmp_path / "hf", 1)
    labels = list(import_folder(tmp_path / "hf").recipe.data.labels)  # type: ignore[attr-defined]
    (tmp_path / "some.tsv").write_text("".join(f"{TEXT}\t{label}\n" for label in labels), "utf-8")
    found = json.loads(said("evaluate", tmp_path / "hf", "--data", tmp_path / "some.tsv", "--json"))
    assert found["accuracy"]["value"] == pytest.approx(100 / len(labels))
    assert said("look", tmp_path / "hf", TEXT)
    assert said("doctor", tmp_path / "hf")
    assert not (tmp_path / "hf" / "evaluation.json").exists()


# ---- the hub


@pytest.fixture
def their_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands in for huggingface_hub: org/name is there, org/pickled has no safetensors, and nothing else is."""
    monkeypatch.chdir(tmp_path)
    cache = tmp_path / "cache" / "models--org--name" / "snapshots" / "1234"
    speak("GPT2LMHeadModel", cache)
    pickled = tmp_path / "cache" / "models--org--pickled" / "snapshots" / "5678"
    pickled.mkdir(parents=True)
    (pickled / "config.json").write_text("{}")
    asked: list[dict[str, Any]] = []

    class RepositoryNotFoundError(OSError):
        pass

    def snapshot_download(name: str, **how: Any) -> str:
        asked.append({"name": name, **how})
        if name not in ("org/name", "org/pickled"):
            raise RepositoryNotFoundError(f"404 {name}")
        return str(cache if name == "org/name" else pickled)

    module: Any = ModuleType("huggingface_hub")
    module.snapshot_download, module.errors = snapshot_download, SimpleNamespace(**vars())
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_a_name_at_the_hub_is_fetched_by_a_list(their_hub: list[dict[str, Any]], said: Said, tmp_path: Path) -> None:
    printed = said("import", "org/name", "runs/theirs")
    assert "came GPT2LMHeadModel of the family gpt2, from org/name" in " ".join(printed.split())
    (asked,) = their_hub
    assert asked["name"] == "org/name"
    assert {"config.json", "*.safetensors", "tokenizer.json", "vocab.txt"} <= set(asked["allow_patterns"])
    assert not any(name.endswith((".bin", ".py", ".pt", "*")) for name in asked["allow_patterns"])
    assert asked["ignore_patterns"] == ["*/*"], "folders inside are left there"
    answer = said("predict", "runs/theirs", TEXT)
    assert said("predict", "org/name", TEXT) == answer
    assert regard.load("org/name", device="cpu").ask([TEXT])[0].text + "\n" == answer
    assert not (tmp_path / "org").exists()


def test_what_the_hub_does_not_have(their_hub: list[dict[str, Any]], told: Said, tmp_path: Path) -> None:
    sentence = told(4, "import", "org/nothing", "run")
    assert sentence.startswith("org/nothing: no such folder, and no such model at the Hugging Face hub, or none")
    assert "hf auth login" in sentence
    assert "org/pickled has no safetensors at the Hugging Face hub" in told(4, "import", "org/pickled", "run")
    assert "no such folder, and no such model" in told(4, "predict", "org/nothing", "a text")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["runs/demmo", "here/other", "a/b/c", "name", "./org", "../org/name", "/org/name"])
def test_a_folder_that_was_misspelt_is_not_looked_for_at_the_hub(
    name: str, their_hub: list[dict[str, Any]], told: Said, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    assert "no such folder; runs are made by: regard train" in told(4, "predict", name, "a text")
    assert "no such folder; name a Hugging Face folder" in told(4, "import", name, "run")
    assert not their_hub


def test_without_huggingface_hub_its_extra_is_named(
    told: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs huggingface_hub; write pip install 'regard[hub]'" in told(1, "import", "org/name", "run")


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    """The real library, told to stay away from the network."""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    found = tiny.command("import", "org/name", "run", cwd=tmp_path, env=offline)
    (line,) = found.stderr.decode().splitlines()
    assert found.returncode == 1
    assert line.startswith("regard: org/name: no such folder, and the Hugging Face hub cannot be reached (")
    assert line.endswith("; name a folder, or try again later")
    assert not (tmp_path / "run").exists()


def test_folders_in_the_hubs_cache_are_called_by_their_model(tmp_path: Path) -> None:
    assert hub.name_of(tmp_path / "models--org--a-b" / "snapshots" / "1234") == "org/a-b"
    assert hub.name_of(tmp_path / "mine") == "mine"


# ---- export


def test_an_export_to_hugging_face_says_how_near_it_is(said: Said, tmp_path: Path) -> None:
    speak("MarianMTModel", tmp_path / "hf")
    said("import", tmp_path / "hf", tmp_path / "run")
    printed = said("export", tmp_path / "run", tmp_path / "back", "--to", "hf")
    assert f"{tmp_path / 'back'} is written: config.json" in printed
    assert "against MarianMTModel of transformers" in printed
    assert "largest difference" in printed
    answer = said("predict", tmp_path / "run", TEXT, "--beam", "1", "--longest", "9")
    assert said("predict", tmp_path / "back", TEXT, "--beam", "1", "--longest", "9") == answer
    assert said("export", tmp_path / "hf", tmp_path / "again"), "a foreign folder is a run to it; hf when left out"
    files_ = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("back", "again")]
    assert files_[0] == files_[1]


def test_an_export_to_an_engine_says_what_its_check_found(said: Said, tmp_path: Path) -> None:
    printed = said("export", tiny.trained(), tmp_path / "fast", "--to", "ctranslate2")
    assert f"{tmp_path / 'fast'} is written: config.json, model.bin" in printed
    assert "ctranslate2 " in printed
    assert "greedy tokens are the same" in printed


# ---- what is refused, with its code, and nothing half-written


def test_commands_that_lack_something(told: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "import what, and as which run? Write: regard import DIR RUN" in told(2, "import", "hf")
    assert "export which run, and where to? Write: regard export RUN DIR --to onnx" in told(2, "export", "run")
    assert "'c': two folders are wanted, and nothing else" in told(2, "import", "a", "b", "c")
    assert "to: nothing is written for 'onxx'; did you mean 'onnx'?" in told(2, "export", "a", "b", "--to", "onxx")
    assert "known: ctranslate2, hf, onnx" in told(2, "export", "a", "b", "--to", "keras")
    assert "ot: no such setting; known: to" in told(2, "export", "a", "b", "--ot", "hf")
    assert "to: no such setting" in told(2, "import", "a", "b", "--to", "hf")
    assert not list(tmp_path.iterdir())


def strange(folder: Path, kind: str) -> None:
    if kind == "missing":
        return
    save("GPT2LMHeadModel", folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    match kind:
        case "no config":
            (folder / "config.json").unlink()
        case "pickle":
            (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        case "family":
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt3"}))
        case "architecture":
            (folder / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2Model"]}))


@pytest.mark.parametrize(
    ("kind", "code", "sentence"),
    [
        ("missing", 4, "no such folder; name a Hugging Face folder: config.json, model.safetensors and the tokenizer"),
        ("no config", 4, "has no config.json; name a Hugging Face folder"),
        ("pickle", 4, "has pytorch_model.bin and no model.safetensors: such a file can run code as it is opened"),
        ("family", 2, "model_type: no family 'gpt3' is known; did you mean 'gpt2'?"),
        ("architecture", 2, "architectures: 'GPT2Model' of the family 'gpt2' is not known; did you mean"),
    ],
)
def test_a_folder_that_cannot_be_imported(kind: str, code: int, sentence: str, told: Said, tmp_path: Path) -> None:
    strange(tmp_path / "hf", kind)
    before = sorted(tmp_path.rglob("*"))
    assert sentence in told(code, "import", tmp_path / "hf", tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_encoder_without_a_vocabulary_is_not_imported(told: Said, tmp_path: Path) -> None:
    save("BertModel", tmp_path / "hf")
    assert "put tokenizer.json or vocab.txt beside config.json" in told(4, "import", tmp_path / "hf", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["import", "export"])
def test_nothing_is_written_over(verb: str, told: Said, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    sentence = told(2, verb, tmp_path / "whatever", tmp_path / "mine")
    assert sentence == f"{tmp_path / 'mine'}: is there already; name a folder that is not, or remove it first"
    assert (tmp_path / "mine" / "file").read_text() == "mine"


def test_a_system_that_has_no_place_there(told: Said, tmp_path: Path) -> None:
    """The run of all tests is pre-norm, which no family is."""
    assert 'model.norm: a Transformer at Hugging Face has "post"' in told(2, "export", tiny.trained(), tmp_path / "hf")
    model = {"layers": 1, "dim": 8, "hidden": None, "norm": None, "heads": None, "tied": None, "dropout": None}
    values = tiny.recipe(system="seq2seq", train={"steps": 1})
    values["model"] = {key: value for key, value in {**values["model"], **model}.items() if value is not None}
    run = tiny.train(tmp_path / "run", values)
    assert "a seq2seq has no family at Hugging Face; export a bert, a gpt or a transformer" in told(
        2, "export", run, tmp_path / "hf"
    )
    assert "no ONNX graph of ours holds" in told(2, "export", run, tmp_path / "onnx", "--to", "onnx")
    assert "CTranslate2 has no place for a Seq2Seq" in told(2, "export", run, tmp_path / "c", "--to", "ctranslate2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_what_is_no_run_is_not_exported_or_resumed(told: Said, tmp_path: Path) -> None:
    assert "no such folder; runs are made by" in told(4, "export", tmp_path / "none", tmp_path / "out")
    save("GPT2LMHeadModel", tmp_path / "hf")
    assert "not a run folder; make one of it with: regard import" in told(4, "resume", tmp_path / "hf")
    main(["import", str(tmp_path / "hf"), str(tmp_path / "run")])
    sentence = told(2, "resume", tmp_path / "run")
    assert "was imported, so that there is no training to go on with; begin another with it: regard train" in sentence
    assert not (tmp_path / "run" / "data").exists()


# ---- an empty prompt


def test_a_model_without_a_mark_needs_a_first_word(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("GPT2LMHeadModel", tmp_path, bos_token_id=None, eos_token_id=None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0 1\n\n1 2\n")))
    assert main(["predict", str(tmp_path), "--longest", "3"]) == 3
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 1, "what stands before it is answered"
    assert "this model has no mark that begins a text; write a word" in printed.err
    assert regard.load(tmp_path, device="cpu").look("0 1", longest=3).start == "0"


# ---- the page


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_of_ctranslate2_runs(home: Path, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    said("export", tiny.trained(), "demo-ctranslate2", "--to", "ctranslate2")
    assert run_page("ctranslate2", capsys) == regard.load(tiny.trained())("twenty-three", beam=1, longest=24)


@pytest.mark.parametrize(
    ("engine", "folder"),
    [pytest.param("onnxruntime", "demo-onnx", marks=pytest.mark.storm), ("ctranslate2", "demo-ctranslate2")],
)
def test_the_examples_of_the_engines_know_the_marks_of_a_bart(
    engine: str, folder: str, home: Path, said: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    """One vocabulary, a mark before the source, and one that opens the answer."""
    speak("BartForConditionalGeneration", home / "hf", tie_word_embeddings=True)
    said("import", "hf", "run")
    said("export", "run", folder, "--to", folder.removeprefix("demo-"))
    assert run_page(engine, capsys) == regard.load("run", device="cpu")("twenty-three", beam=1, longest=24)


def test_the_example_of_folders_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speak("MarianMTModel", home / "opus-mt-zh-en")
    assert "against MarianMTModel of transformers" in run_page("export_folder", capsys)


def test_the_example_of_a_pickle_runs(home: Path, said: Said, capsys: pytest.CaptureFixture[str]) -> None:
    model = speak("BertForPreTraining", home / "bert_pretrained")
    (home / "bert_pretrained" / "model.safetensors").unlink()
    torch.save(model.state_dict(), home / "bert_pretrained" / "pytorch_model.bin")
    run_page("weights_only", capsys)
    assert "BertForPreTraining of the family bert, from reactions" in said("import", "reactions", "run")
