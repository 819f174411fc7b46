"""Every task, the whole way that a person goes: train, load, ask, evaluate, look, examine; and what is refused."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from rich.console import Console

import regard
from regard import run
from regard.cli import main
from regard.config import Recipe, make_recipe, merge, read_toml, write_toml
from regard.data.tokenizer import Tokenizer
from regard.errors import CheckpointError, ConfigError, DataError
from regard.laws import LAWS
from regard.models import build, schema
from regard.pipeline import Pipeline, read_run
from regard.prepare import prepare
from regard.prepare.shared import completed
from regard.recipes import find_recipe
from regard.weights import begin_with, load_weights

QUIET = Console(quiet=True)
BERT = {"dim": 16, "heads": 2, "layers": 1, "hidden": 32, "context": 48}
GPT = {"dim": 16, "heads": 2, "layers": 1, "context": 48}
TRAIN = {"steps": 3, "tokens": 256, "warmup": 1, "threads": 1, "evaluate_every": 3, "save_every": 3}
TEXT = "the cat sat on the mat . a dog ran in the park . birds fly over the old house . "


@cache
def folder() -> Path:
    """Small files of every kind."""
    place = Path(mkdtemp())
    (place / "stream.txt").write_text(TEXT * 20, "utf-8")
    sentences = TEXT.split(" . ")[:3]
    (place / "documents.txt").write_text("\n\n".join("\n".join(sentences[::way]) for way in (1, -1, 1)), "utf-8")
    labelled = [f"{sentence}\t{'one' if i % 2 else 'two'}" for i, sentence in enumerate(sentences * 4)]
    (place / "labelled.tsv").write_text("\n".join(labelled), "utf-8")
    (place / "pairs.tsv").write_text("\n".join(f"{s}\t{s}\t{i % 5}.5" for i, s in enumerate(sentences * 4)), "utf-8")
    asked = [
        {"id": str(i), "question": "who sat ?", "answers": [{"text": "the cat", "answer_start": 0}]} for i in (1, 2)
    ]
    squad = {"data": [{"title": "t", "paragraphs": [{"context": TEXT, "qas": asked}]}]}
    (place / "squad.json").write_text(json.dumps(squad), "utf-8")
    (place / "tagged.txt").write_text("the O\ncat B-X\nsat O\n\na O\ndog B-X\nran O\n" * 4, "utf-8")
    return place


def values(kind: str, system: str, name: str, model: dict[str, Any], **more: Any) -> dict[str, Any]:
    files = {split: [str(folder() / name)] for split in ("train", "valid", "test")}
    data = {**files, "longest": 32, **more.pop("data", {})}
    settings = {"name": kind, **more.pop("task", {})}
    tokens = {"kind": "wordpiece", "size": 120, **more.pop("tokens", {})}
    return {
        "system": system, "data": data, "task": settings, "tokens": tokens, "model": model,
        "train": {**TRAIN, **more.pop("train", {})},
    }  # fmt: skip


RECIPES: dict[str, dict[str, Any]] = {
    "language": values("language", "gpt", "stream.txt", GPT, tokens={"kind": "char"}),
    "recurrent": values(
        "language", "recurrent", "stream.txt", {"dim": 12, "embedding": 8}, data={"documents": "line", "apart": True}
    ),
    "masked": values("masked", "bert", "documents.txt", BERT),
    "label": values("classify", "bert", "labelled.tsv", BERT),
    "number": values(
        "classify", "bert", "pairs.tsv", BERT, data={"texts": [0, 1], "label": 2}, task={"kind": "number"}
    ),
    "gpt label": values("classify", "gpt", "labelled.tsv", GPT, task={"auxiliary": 0.5}),
    "span": values("span", "bert", "squad.json", BERT, task={"stride": 8, "question": 8}),
    "tag": values("tag", "bert", "tagged.txt", BERT),
}  # fmt: skip
ASKED = {
    "language": "the cat",
    "recurrent": "the cat",
    "masked": "the <mask> sat",
    "label": "the cat sat",
    "number": "the cat\tthe dog",
    "gpt label": "the cat sat",
    "span": f"who sat ?\t{TEXT}",
    "tag": "the cat sat",
}
every = pytest.mark.parametrize("name", RECIPES)


@cache
def trained(name: str) -> Path:
    place = Path(mkdtemp()) / name.replace(" ", "-")
    run.start(make_recipe(RECIPES[name], schema), place, QUIET)
    return place


@cache
def pipeline(name: str) -> Pipeline:
    return regard.load(trained(name))


@every
def test_a_run_measures_its_test_split_as_it_is_measured_later(name: str) -> None:
    told = json.loads((trained(name) / "evaluation.json").read_text("utf-8"))
    again = run.evaluate(trained(name), QUIET)
    assert {key: row["value"] for key, row in told.items()} == pytest.approx(dict(again), rel=1e-5)
    assert all(row["definition"] for row in told.values())


@every
def test_other_files_are_measured_alike(name: str) -> None:
    recipe = RECIPES[name]
    found = run.evaluate(trained(name), QUIET, files=recipe["data"]["test"])
    assert dict(found) == pytest.approx(dict(run.evaluate(trained(name), QUIET)), rel=1e-5)


@every
def test_a_question_is_answered_alone_as_in_company(name: str) -> None:
    model, text = pipeline(name), ASKED[name]
    longer = model.example("the old dog ran in the park")
    together = model.ask([text, longer, text])
    assert [reply.text for reply in together[::2]] == [model.ask([text])[0].text] * 2
    assert together[1].text == model.ask([longer])[0].text
    assert all(json.dumps(reply.json) for reply in together)
    assert model(text) is not None


@every
def test_in_bf16_everything_can_be_asked_and_measured(name: str) -> None:
    """And comes out nearly the same."""
    model, text = regard.load(trained(name), arithmetic="bf16"), ASKED[name]
    assert {weight.dtype for weight in model.model.parameters()} == {torch.bfloat16}
    (reply,) = model.ask([text])
    assert json.dumps(reply.json)
    if name != "recurrent":
        for weights in model.look(text).maps.values():
            np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2)
    if name in ("language", "masked"):
        (reply,) = model.ask(["a dog"], embed=True)
        assert np.linalg.norm(reply.json["vector"]) == pytest.approx(1, rel=1e-2)
    found, exact = (run.evaluate(trained(name), QUIET, arithmetic=name_) for name_ in ("bf16", "fp32"))
    assert found.keys() == exact.keys()
    for key in exact.keys() & {"loss", "bits_per_character"}:
        assert found[key] == pytest.approx(exact[key], rel=0.02)


@every
def test_what_was_looked_at_can_be_drawn(name: str) -> None:
    if name == "recurrent":
        with pytest.raises(ConfigError, match=r"^this model has no attention to watch; take one that has"):
            pipeline(name).look(ASKED[name])
        return
    trace = pipeline(name).look(ASKED[name])
    for weights in trace.maps.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-4)


@every
def test_the_doctor_finds_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(trained(name)), "--json"]) == 0
    assert all(row["holds"] for row in json.loads(capsys.readouterr().out))


@every
def test_a_setting_without_effect_is_refused(name: str) -> None:
    wrong = {"top": 3} if "language" in (name, RECIPES[name]["task"]["name"]) else {"beam": 3}
    with pytest.raises(ConfigError, match="takes no such setting"):
        pipeline(name).ask([ASKED[name]], **wrong)


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ("language", "recurrent")])
def test_what_only_reads_decodes_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=r"beam: nothing is decoded to measure the task"):
        run.evaluate(trained(name), QUIET, how={"beam": 3})


def test_a_text_alone_is_one_text() -> None:
    """And not its letters."""
    assert len(pipeline("masked").embed("a dog")) == 1
    model = pipeline("language")
    assert model.score("a dog") == model.score(["a dog"])
    assert [one.text for one in model.choose("a ", "dog")] == ["dog"]


def test_what_only_writers_learn_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    values = merge(RECIPES["label"], {"task": {"auxiliary": 0.5}})
    with pytest.raises(
        ConfigError, match=r"^task\.auxiliary is for systems that write, such as gpt, and bert does not"
    ):
        run.start(make_recipe(values, schema), tmp_path / "none", QUIET)
    assert not (tmp_path / "none").exists()


def test_when_to_give_no_answer_can_be_said_when_asking(tmp_path: Path, said: Callable[..., str]) -> None:
    values = merge(RECIPES["span"], {"task": {"impossible": True}})
    run.start(make_recipe(values, schema), tmp_path / "run", QUIET)
    model, asked = regard.load(tmp_path / "run"), [ASKED["span"]]
    assert [one.text for one in model(asked, threshold=-1e9)] == [""]
    assert all(one.text for one in model(asked, threshold=1e9))
    exact = {at: run.evaluate(tmp_path / "run", QUIET, how={"threshold": at})["exact"] for at in (-1e9, 1e9)}
    assert exact[-1e9] == 0.0
    answers = {at: said("predict", tmp_path / "run", *asked, "--top", "1", f"--threshold={at}") for at in (-1e9, 1e9)}
    assert [bool(answer.strip()) for answer in answers.values()] == [False, True]
    told = json.loads(said("evaluate", tmp_path / "run", "--json", "--threshold=-1e9"))
    assert told["exact"]["value"] == 0.0
    with pytest.raises(ConfigError, match=r"^threshold: in this run every question has an answer"):
        pipeline("span")(asked, threshold=0.0)
    with pytest.raises(ConfigError, match=r"^top: the task 'span' has no such setting here; leave it out"):
        model(asked, top=2)


@pytest.mark.parametrize("name", ["label", "number", "gpt label"])
def test_a_text_of_which_nothing_is_known_gets_no_label(name: str, told: Callable[..., str]) -> None:
    model, texts = pipeline(name), len(RECIPES[name]["data"].get("texts", [0]))
    for text, sentence in (
        (
            "東京 Ж",
            f"every token of input 2 is unknown to this model: {' '.join(['東京 Ж'] * texts)!r}; write texts like",
        ),
        (" ", "input 2 is empty, and there is nothing to tell; write texts like those that it"),
    ):
        strange = "\t".join([text] * texts)
        with pytest.raises(DataError, match=re.escape(sentence)):
            model([ASKED[name], strange])
        assert told(3, "predict", trained(name), ASKED[name], strange).startswith(sentence)
        assert model.ask([strange], embed=True), "any text has a vector"
    assert model("\t".join(["東京 cat"] * texts)) is not None


@pytest.mark.data("dna")
def test_letters_of_dna_are_read_in_either_case(tmp_path: Path, data_dir: Callable[[str], Path]) -> None:
    """And they are numbered as where case matters, so that the same is learnt."""
    file = [str(data_dir("dna") / "splice.data")]
    values = merge(read_toml(find_recipe("dna")), {"data": dict.fromkeys(("train", "valid", "test"), file)})
    tasks = []
    for either in (True, False):
        (tmp_path / str(either)).mkdir()
        recipe = make_recipe(merge(values, {} if either else {"tokens": {"lowercase": False}}), schema)
        tasks.append(prepare(recipe, tmp_path / str(either))[1])
    assert torch.equal(tasks[0].batch("train", 0).sequences, tasks[1].batch("train", 0).sequences)
    letters = Tokenizer.load(tmp_path / "True" / "tokenizer.json")
    assert letters.encode("CcaGNn") == letters.encode("ccagnn")


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("name", [*RECIPES, "rewrite", "series"])
def test_a_file_that_is_missing_is_missed_before_anything_is_begun(name: str, split: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("one\teins\n" * 9, "utf-8")
    np.savez(tmp_path / "series.npz", x=np.zeros((9, 4, 1)), y=np.zeros(9))
    lstm = {"dim": 4, "cell": "lstm"}
    others = {
        "rewrite": tiny.from_files(tmp_path / "pairs.tsv"),
        "series": {
            "system": "recurrent", "model": lstm, "train": TRAIN, "task": {"name": "series", "kind": "number"},
            "data": {"train": [str(tmp_path / "series.npz")]},
        },
    }  # fmt: skip
    recipe = make_recipe(merge((RECIPES | others)[name], {"data": {split: ["nowhere/it.txt"]}}), schema)
    heard: list[str] = []
    with pytest.raises(DataError, match=r"^nowhere/it\.txt: no such file; looked for "):
        prepare(recipe, tmp_path / "run", heard.append)
    assert heard == []
    assert not (tmp_path / "run").exists()


def test_a_split_that_is_stored_needs_no_files(tmp_path: Path) -> None:
    text, held = tmp_path / "text.txt", tmp_path / "held.txt"
    for path in (text, held):
        shutil.copy(RECIPES["language"]["data"]["train"][0], path)
    recipe = make_recipe(merge(RECIPES["language"], {"data": {"train": [str(text)], "valid": [str(held)]}}), schema)
    (tmp_path / "run").mkdir()
    prepare(recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "data" / "valid")
    text.unlink()
    prepare(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "data" / "valid").exists()


def test_what_to_go_on_with_can_be_gone_on_with(tmp_path: Path, said: Callable[..., str]) -> None:
    recipe = make_recipe(merge(RECIPES["label"], {"data": {"test": []}}), schema)
    (tmp_path / "recipe.toml").write_text(write_toml(recipe), "utf-8")
    printed = said("train", tmp_path / "recipe.toml", "--out", tmp_path / "run")
    assert f"evaluate {tmp_path / 'run'} --split valid" in printed
    assert "accuracy" in said("evaluate", tmp_path / "run", "--split", "valid")


@every
def test_every_text_has_a_vector(name: str) -> None:
    (reply,) = pipeline(name).ask(["a dog"], embed=True)
    assert np.linalg.norm(reply.json["vector"]) == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("name", ["language", "masked", "label", "span", "tag"])
def test_resuming_ends_where_an_undisturbed_run_ends(name: str, tmp_path: Path) -> None:
    values = {**RECIPES[name], "train": {**TRAIN, "steps": 4, "save_every": 1, "keep": 4, "final": "last"}}
    run.start(make_recipe(values, schema), tmp_path / "run", QUIET)
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    (tmp_path / "run" / "model.safetensors").unlink()
    first, *later = sorted(place for place in (tmp_path / "run" / "checkpoints").iterdir() if place.is_dir())
    for place in later:
        shutil.rmtree(place)
    printed = io.StringIO()
    run.resume(tmp_path / "run", Console(file=printed, width=300))
    assert "going on from step 1" in printed.getvalue(), first
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole


# ---- what a language model can be asked


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["predict", str(trained("language")), *words]) == 0
    return capsys.readouterr().out


def test_streaming_writes_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for how in ([], ["--beam", "1"], ["--sample", "--seed", "3"]):
        plain = asked(capsys, "the cat", "--longest", "9", *how)
        assert asked(capsys, "the cat", "--longest", "9", *how, "--stream") == plain
        assert plain.startswith("the cat")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (["--beam", "4"], "decode.beam = 4: a beam knows its words only at the end; write beam = 1 or sample"),
        (["--coverage", "1"], "decode.coverage = 1.0: there is no source that could be covered; write 0"),
    ],
)
def test_what_cannot_be_streamed_is_refused_before_a_word_is_said(
    how: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained("language")), "the cat", "--stream", *how]) == 2
    printed = capsys.readouterr()
    assert printed.out.strip() == ""
    assert sentence in printed.err


def test_choices_are_ranked_by_their_likelihood(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in asked(capsys, "the cat", "--choices", "sat", "qqq").splitlines()]
    assert {text for _, text in rows} == {"sat", "qqq"}
    assert float(rows[0][0]) >= float(rows[1][0])


def test_demonstrations_stand_before_the_question(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "shots.tsv").write_text("a\tb\nc\td", "utf-8")
    told = asked(capsys, "e", "--shots", str(tmp_path / "shots.tsv"), "--beam", "1", "--longest", "3")
    assert told.startswith("a b\nc d\ne")
    (tmp_path / "shots.tsv").write_text("a b", "utf-8")
    assert main(["predict", str(trained("language")), "e", "--shots", str(tmp_path / "shots.tsv")]) == 3
    assert "line 1: no tab; write a question, a tab and its answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "shots.tsv: no such file; name one that is there"),
        (b"", "shots.tsv: empty; name a file"),
        (b"a\tb\n\xff\tb\n", "shots.tsv, line 2: not UTF-8; save it as UTF-8"),
    ],
)
def test_demonstrations_that_cannot_be_read(
    data: bytes | None, sentence: str, told: Callable[..., str], tmp_path: Path
) -> None:
    if data is not None:
        (tmp_path / "shots.tsv").write_bytes(data)
    found = told(3, "predict", trained("language"), "e", "--shots", tmp_path / "shots.tsv")
    assert sentence in found
    assert "Errno" not in found


# ---- beginning with another run


def test_a_run_begins_with_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_recipe({**RECIPES["label"], "train": {**TRAIN, "begin": str(trained("masked"))}}, schema)
    run.start(recipe, tmp_path / "tuned", Console(width=300))
    printed = capsys.readouterr().out
    assert f"begins with the weights of {trained('masked')}; fresh: labels.1.weight, labels.1.bias" in printed
    tuned = regard.load(tmp_path / "tuned")
    assert tuned.tokenizers.fingerprint == pipeline("masked").tokenizers.fingerprint


def beginning(name: str, other: str, model: dict[str, Any], **train: Any) -> Recipe:
    begin = {"begin": str(trained(other)), **train}
    return make_recipe({**RECIPES[name], "model": model, "train": {**TRAIN, **begin}}, schema)


def begun_with(recipe: Recipe) -> dict[str, Any]:
    """The [model] of a run that begins with another."""
    return completed(recipe, read_run(Path(recipe.train.begin))).model.model_dump()


def test_what_a_recipe_does_not_say_of_its_model_is_as_in_the_run_that_it_begins_with(tmp_path: Path) -> None:
    recipe = beginning("label", "masked", {"attention_dropout": 0.3})
    run.start(recipe, tmp_path / "tuned", QUIET)
    tuned, other = read_run(tmp_path / "tuned").model.model_dump(), pipeline("masked").recipe.model.model_dump()
    assert {key for key in tuned if tuned[key] != other[key]} == {"head", "labels", "attention_dropout"}
    before, after = (load_weights(place / "model.safetensors") for place in (trained("masked"), tmp_path / "tuned"))
    assert before["words.weight"].shape == after["words.weight"].shape
    assert run.train(recipe, tmp_path / "again").recipe.model == read_run(tmp_path / "tuned").model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            {"norm": "post"},
            r'model\.norm = "post": train\.begin = .* has "pre"; leave it out, or write train\.fresh = t',
        ),
        ({"activation": "relu"}, r'model\.activation = "relu": .* has "gelu_tanh"; leave it out'),
        ({"size": "gpt2-medium"}, r"model\.dim = 1024: .* has 16; leave it out"),
        ({"hidden": 65}, r"model\.hidden = 65: .* has 64; leave it out"),
        ({"bias": False}, r"model\.bias = false: .* has true; leave it out"),
    ],
)
def test_weights_are_not_put_into_a_model_in_which_they_mean_something_else(
    model: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run.start(beginning("gpt label", "language", model), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()
    fresh = begun_with(beginning("gpt label", "language", {"heads": 2, **model}, fresh=True))
    assert all(fresh[name] == value for name, value in model.items() if name != "size")
    assert fresh["context"] == GPT["context"] or "size" in model


def test_of_a_run_of_another_system_only_the_tokenizer_can_be_had(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'system = "gpt": train\.begin = .* is a recurrent; write system = "recurrent"'
    ):
        run.start(beginning("gpt label", "recurrent", GPT), tmp_path / "run", QUIET)
    assert begun_with(beginning("gpt label", "recurrent", GPT, fresh=True))["dim"] == GPT["dim"]
    with pytest.raises(ConfigError, match=r"is a gpt; begin with a bert, or write train\.fresh = true"):
        run.start(beginning("tag", "language", BERT), tmp_path / "run", QUIET)


def test_a_run_that_has_not_learnt_to_sum_up_leaves_that_to_the_recipe() -> None:
    other = make_recipe({**RECIPES["masked"], "model": {**BERT, "vocab": 50, "pooler": "none"}}, schema)
    for model, pooler in (({}, "tanh"), ({"pooler": "relu"}, "relu")):
        found = completed(make_recipe({**RECIPES["label"], "model": model}, schema), other)
        assert found.model.model_dump() == {**other.model.model_dump(), "vocab": None, "pooler": pooler}


def test_what_means_the_same_may_be_said() -> None:
    same = {**GPT, "hidden": 64, "dropout": 0.4, "scaled_init": False}
    found = begun_with(beginning("gpt label", "language", same))
    assert same.items() <= found.items()


@pytest.mark.parametrize("context", [40, 60])
def test_a_longer_or_shorter_context_keeps_the_positions_that_were_learnt(
    context: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = beginning("gpt label", "language", {"context": context}, rate=1e-9)
    run.start(recipe, tmp_path / "tuned", Console(width=300))
    said = capsys.readouterr().out
    assert "fresh: labels.1.weight, labels.1.bias, words.weight from row " in said  # there are marks besides
    assert ("positions.table.weight from row 48 on" in said) == (context > 48)
    before, after = (
        load_weights(place / "model.safetensors")["positions.table.weight"]
        for place in (trained("language"), tmp_path / "tuned")
    )
    assert len(after) == context
    assert torch.allclose(before[:40], after[:40], atol=1e-6)


def test_weights_of_which_none_fits_are_refused(tmp_path: Path) -> None:
    other = build("gpt", schema("gpt")(vocab=9, dim=4, heads=1, layers=1))
    with pytest.raises(
        CheckpointError, match="none of its weights fits the model; begin with a run of the same system"
    ):
        begin_with(trained("recurrent") / "model.safetensors", other)


def test_a_foreign_folder_is_made_a_run_before_one_begins_with_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    recipe = make_recipe({**RECIPES["label"], "train": {**TRAIN, "begin": str(tmp_path)}}, schema)
    with pytest.raises(CheckpointError, match=r"not a run; make a run of it first: regard import .* RUN"):
        run.start(recipe, tmp_path / "run", QUIET)


def test_the_recipe_of_an_imported_run_has_no_data(tmp_path: Path) -> None:
    recipe = RECIPES["language"]
    imported = make_recipe({**recipe, "data": {**recipe["data"], "train": ["imported"]}}, schema)
    with pytest.raises(
        ConfigError, match=r"was imported, and has no data of its own; name yours with --data\.train FILE"
    ):
        run.start(imported, tmp_path / "run", QUIET)


def test_tags_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("the O\ncat O\n\nsat O\n\na I-X\n", "utf-8")
    recipe = values("tag", "bert", "tagged.txt", BERT, data={"train": [str(file)]})
    with pytest.raises(
        DataError, match=r"x\.txt: the tag 'O' alone \(1 of 3 sentences skipped: .*; name another column by data\.tag"
    ):
        prepare(make_recipe(recipe, schema), tmp_path / "run")
    recipe["data"]["labels"] = ["O"]
    with pytest.raises(DataError, match=r"x\.txt: the tag 'O' alone, and there .* two or more in data\.labels"):
        prepare(make_recipe(recipe, schema), tmp_path / "run")


def test_bad_lines_are_told_where_no_label_is_left(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(b"a\t1\ncaf\xe9\t0\n")
    recipe = values("classify", "bert", "labelled.tsv", BERT, data={"train": [str(tmp_path / "x.tsv")]})
    with pytest.raises(DataError, match=r"the label '1' alone \(1 of 2 lines skipped: 1 not UTF-8 \(line 2\)\)"):
        prepare(make_recipe(recipe, schema), tmp_path / "run")


def test_a_rehearsal_tells_what_is_predicted() -> None:
    """Windows, not the tokens in them."""
    printed = io.StringIO()
    run.rehearse(make_recipe(RECIPES["span"], schema), Console(file=printed, width=300))
    (rows,) = re.findall(r"words (\d+) × ", printed.getvalue())
    assert f"; {rows} to predict a step" in printed.getvalue()


def test_a_gpt_gets_the_marks_that_it_lacks(tmp_path: Path) -> None:
    recipe = make_recipe({**RECIPES["gpt label"], "train": {**TRAIN, "begin": str(trained("language"))}}, schema)
    recipe, _ = prepare(recipe, tmp_path)
    old = pipeline("language").tokenizers.target
    assert recipe.model.vocab == old.size + 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"train": {**TRAIN, "begin": "nowhere"}}, CheckpointError, r"train\.begin = nowhere: no trained run is there"),
        (
            {"system": "gpt", "model": GPT},
            ConfigError,
            r"system: a gpt cannot do the task 'span'; write system =",
        ),
        ({"task": {"name": "spann"}}, ConfigError, r"task\.name: no task 'spann'; did you mean 'span'\?"),
        (
            {"model": {**BERT, "head": "sentence"}},
            ConfigError,
            r"model\.head = \"sentence\": the task 'span' needs",
        ),
        ({"model": {**BERT, "context": 16}}, ConfigError, r"model\.context = 16 is shorter than data\.longest = 32"),
        ({"train": {**TRAIN, "metric": "bleu"}}, ConfigError, r"train\.metric: the task measures no 'bleu'"),
        ({"tokens": {"joint": False}}, ConfigError, r"tokens\.joint: this task has one kind of text"),
        ({"tokens": {"continuation": "@@"}}, ConfigError, r"tokens\.continuation: only rewriting"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], error: type, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        prepare(make_recipe({**RECIPES["span"], **change}, schema), tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("language", "a" * 60, r"^input 1 has 60 tokens, but this model reads at most 48; write a shorter prompt$"),
        ("masked", "no mask", r"^input 1 has no mask; write <mask> where a word is to be guessed$"),
        ("number", "one text", r"^input 1 has 1 text; this model was trained on 2 texts with a tab between them$"),
        ("label", "a\tb", r"^input 1 has 2 texts; this model was trained on one text without a tab$"),
        ("span", "who sat ?", r"^input 1 is no question; write the question, a tab and the passage to look in$"),
    ],
)
def test_what_cannot_be_answered(name: str, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        pipeline(name).check(text)


@every
def test_what_is_no_text_is_refused_at_the_entrance(name: str) -> None:
    with pytest.raises(DataError, match=r"^5 came, where an input or a list of inputs was wanted; put a text in quot"):
        pipeline(name)(5)  # type: ignore[call-overload]
    for given, shown in (([ASKED[name], 5], "2 is 5"), ([["a", None]], r"1 is \['a', None\]"), ([None], "1 is None")):
        with pytest.raises(DataError, match=f"^input {shown}, where text was wanted; put it in quotes$"):
            pipeline(name)(given)


def test_a_question_has_one_passage() -> None:
    with pytest.raises(DataError, match=r"^input 1 has 3 texts; give question and passage$"):
        pipeline("span")([["who sat ?", TEXT, TEXT]])


def test_a_classifier_that_looks_back_names_its_last_row_by_the_label() -> None:
    model = pipeline("gpt label")
    trace = model.look(ASKED["gpt label"])
    assert trace.target[-1] == model(ASKED["gpt label"]).label


@pytest.mark.parametrize("context", [2, 3, 4, 11])
def test_the_doctor_asks_what_fits_into_a_context(
    context: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {**RECIPES["language"], "model": {**GPT, "context": context}}
    small["data"] = {**small["data"], "longest": context}
    run.start(make_recipe(small, schema), tmp_path / "run", QUIET)
    capsys.readouterr()
    assert main(["doctor", str(tmp_path / "run"), "--json"]) == 0
    rows = {row["law"]: row for row in json.loads(capsys.readouterr().out)}
    excused = {name for name, row in rows.items() if "exempt" in row}
    assert excused == {name for name, law in LAWS.items() if law.room > context}
    assert "apart" in rows["answers"]


# ---- how many examples a batch has, how a text is read, and what is counted of it


@every
def test_no_batch_has_more_examples_than_it_may(name: str, tmp_path: Path) -> None:
    recipe = make_recipe({**RECIPES[name], "train": {**TRAIN, "rows": 2}}, schema)
    _, task = prepare(recipe, tmp_path)
    assert max(len(task.batch("train", step).ids) for step in range(4)) <= 2


@pytest.mark.parametrize(
    ("system", "model", "data", "counted", "definition"),
    [
        ("recurrent", {"dim": 12, "embedding": 8}, {"order": "lanes"}, "every", "each given all before it, the state"),
        ("gpt", GPT, {"context": 24}, "every", "each given the 24 before it or more, in windows of 32 that overlap"),
        ("gpt", GPT, {"order": "lanes", "context": 8}, "official", "the first 9 tokens of the text and what does not"),
        ("recurrent", {"dim": 12, "embedding": 8}, {"documents": "line"}, "last_word", "of the last word of 3 lines"),
    ],
)
def test_a_run_is_measured_as_its_task_measures(
    system: str, model: dict[str, Any], data: dict[str, Any], counted: str, definition: str, tmp_path: Path
) -> None:
    file = "labelled.tsv" if counted == "last_word" else "stream.txt"
    recipe = values("language", system, file, model, tokens={"kind": "char"}, data=data, task={"counted": counted})
    if counted == "last_word":
        (tmp_path / "lines.txt").write_text("\n".join(TEXT.split(" . ")[:3]), "utf-8")
        recipe["data"] |= {split: [str(tmp_path / "lines.txt")] for split in ("valid", "test")}
    run.start(make_recipe(recipe, schema), tmp_path / "run", QUIET)
    found = run.evaluate(tmp_path / "run", QUIET)
    last = json.loads(next((tmp_path / "run" / "checkpoints").iterdir()).joinpath("state.json").read_bytes())
    assert last["metrics"] == pytest.approx(dict(found), rel=1e-4)
    assert definition in found["loss"].definition  # type: ignore[attr-defined]


def test_only_of_running_text_something_else_can_be_counted(capsys: pytest.CaptureFixture[str]) -> None:
    name = next(name for name, recipe in RECIPES.items() if recipe["task"]["name"] == "tag")
    assert main(["evaluate", str(trained(name)), "--counted", "official"]) == 2
    assert "counted: the task 'tag' has no such setting here; leave it out" in " ".join(capsys.readouterr().err.split())


def test_what_is_counted_can_be_asked_for_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told, and does not pass for the run's own score."""
    recipe = values("language", "gpt", "stream.txt", GPT, tokens={"kind": "char"}, data={"context": 8})
    run.start(make_recipe(recipe, schema), tmp_path / "run", QUIET)
    own = (tmp_path / "run" / "evaluation.json").read_bytes()
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--counted", "official", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["loss"]
    assert "the first 9 tokens of the text" in told["definition"]
    official = {**recipe, "task": {**recipe["task"], "counted": "official"}}
    run.start(make_recipe(official, schema), tmp_path / "official", QUIET)
    assert told["value"] == pytest.approx(run.evaluate(tmp_path / "official", QUIET)["loss"], rel=1e-5)
    assert (tmp_path / "run" / "evaluation.json").read_bytes() == own
    for words, sentence in {
        ("--counted", "last_word"): 'task.counted = "last_word" is of lines, but data.documents = "file"; leave it out',
        ("--counted", "oficial"): "counted: must be 'every', 'official', 'last_word' or 'official_last_word'",
        ("--task.counted", "official"): "task: no such setting; did you mean 'counted'?",
    }.items():
        assert main(["evaluate", str(tmp_path / "run"), *words]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"data": {"context": 32}},
            r"data\.context = 32 leaves nothing to count of windows of data\.longest = 32; write a smaller one",
        ),
        (
            {"task": {"counted": "last_word"}},
            r'task\.counted = "last_word" is of lines, but data\.documents = "file"; write documents = "line"',
        ),
        (
            {"task": {"counted": "official_last_word"}},
            r'task\.counted = "official_last_word" is of lines, but data\.documents = "file"; write documents = "line"',
        ),
        (
            {"task": {"counted": "last_word"}, "data": {"documents": "line"}, "train": {"metric": "bits"}},
            r"train\.metric: the task measures no 'bits'",
        ),
        (
            {"data": {"valid": []}, "train": {"schedule": "plateau"}},
            r'train\.schedule = "plateau" looks at evaluations, but there is no validation split; name its files with',
        ),
    ],
)
def test_readings_that_cannot_be(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    recipe = values("language", "gpt", "stream.txt", GPT, tokens={"kind": "char"}, **changes)
    with pytest.raises(ConfigError, match=sentence):
        run.start(make_recipe(recipe, schema), tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()
