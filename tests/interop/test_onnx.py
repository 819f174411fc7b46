"""onnxruntime gives what the model gives, in every shape."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import tiny
import torch
from interop.made import made
from interop.page import run_page

import regard
from regard.data.batch import pad
from regard.errors import ConfigError, RegardError
from regard.interop.engine import Check
from regard.interop.onnx import Graph, export_onnx
from regard.pipeline import Pipeline


class Exported(NamedTuple):
    pipeline: Pipeline
    folder: Path
    check: Check

    def run(self, graph: str, *given: Any) -> list[np.ndarray]:
        """As whoever has the folder alone would: the names stand in regard.json, in order."""
        names = json.loads((self.folder / "regard.json").read_text("utf-8"))["graphs"][graph]["inputs"]
        arrays = [np.asarray(one) for one in given]
        return session(self.folder / graph).run(None, dict(zip(names, arrays, strict=True)))


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def exported(pipeline: Pipeline, folder: Path) -> Exported:
    return Exported(pipeline, folder, export_onnx(pipeline, folder))


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(regard.load(tiny.trained()), tmp_path_factory.mktemp("onnx") / "translator")


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(made("gpt", layers=1, context=40), tmp_path_factory.mktemp("onnx") / "gpt")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(made("bert", head="pretrain", layers=1), tmp_path_factory.mktemp("onnx") / "bert")


def test_the_check_says_how_near_it_comes(translator: Exported, gpt: Exported, bert: Exported) -> None:
    for _, _, check in (translator, gpt, bert):
        assert check.engine == f"onnxruntime {onnxruntime.__version__}"
        assert 0 < check.difference < 1e-5 * check.scale
        assert len(check.shapes) == 3
    assert translator.check.equal == translator.check.of == gpt.check.equal == gpt.check.of == 12 * (1 + 2 + 3)
    assert bert.check.of == 0, "it writes nothing"
    assert "72 of 72 greedy tokens are the same" in str(gpt.check)
    assert "greedy" not in str(bert.check)


# ---- a translator


def test_a_trained_model_gives_the_same_texts_word_by_word(translator: Exported) -> None:
    texts = [source for source, _ in tiny.pairs(12)]
    tokenizers = translator.pipeline.tokenizers
    marks = tokenizers.target.marks
    source, real = pad([marks.source(ids) for ids in tokenizers.source.encode_many(texts)], marks.pad)
    memory = translator.run("encoder.onnx", source, real)
    past = [tensor[:, :, :0] for tensor in memory]
    tokens, said = np.full((len(texts), 1), marks.begin), []
    for _ in range(24):
        logits, *past = translator.run("decoder.onnx", tokens, *past, real, *memory)
        logits[:, -1, list(marks.unsayable)] = -np.inf
        tokens = logits[:, -1:].argmax(-1)
        said.append(tokens)
    rows = [row[: row.index(marks.end)] if marks.end in row else row for row in np.concatenate(said, 1).tolist()]
    assert [tokenizers.target.decode(row) for row in rows] == translator.pipeline(texts, beam=1, longest=24)


@pytest.mark.parametrize(("batch", "source", "chunks"), [(1, 1, [1]), (1, 9, [1, 4]), (3, 4, [5, 2, 1]), (5, 40, [7])])
def test_an_answer_in_any_chunks_and_shapes(translator: Exported, batch: int, source: int, chunks: list[int]) -> None:
    model, size = translator.pipeline.model, translator.pipeline.tokenizers.target.size
    words = torch.randint(4, translator.pipeline.tokenizers.source.size, (batch, source))
    real = torch.arange(source) < torch.randint(1, source + 1, (batch, 1))
    target = torch.randint(4, size, (batch, sum(chunks)))
    memory = translator.run("encoder.onnx", words, real)
    past, pieces = [tensor[:, :, :0] for tensor in memory], []
    for chunk in target.split(chunks, 1):
        logits, *past = translator.run("decoder.onnx", chunk, *past, real, *memory)
        pieces.append(logits)
    with torch.inference_mode():
        hidden, _ = model(words, real, target)
        expected = model.head.logits(hidden).numpy()  # type: ignore[union-attr, operator]
    np.testing.assert_allclose(np.concatenate(pieces, 1), expected, atol=1e-4)


def test_sizes_that_are_free_have_names(translator: Exported) -> None:
    graph = session(translator.folder / "decoder.onnx")
    shapes = {one.name: one.shape for one in graph.get_inputs()}
    assert shapes["tokens"] == ["batch", "length"]
    assert shapes["real"] == ["batch", "source"]
    assert shapes["past.0.key"] == ["batch", 2, "past", 16]
    assert shapes["memory.0.value"] == ["batch", 2, "source", 16]
    assert [one.name for one in graph.get_outputs()] == ["logits", "present.0.key", "present.0.value"]


def test_the_folder_holds_all_that_is_needed(translator: Exported) -> None:
    assert sorted(path.name for path in translator.folder.iterdir()) == [
        "decoder.onnx", "encoder.onnx", "regard.json", "tokenizer.json", "tokenizer.source.json",
    ]  # fmt: skip
    told = json.loads((translator.folder / "regard.json").read_text("utf-8"))
    assert told["marks"]["begin"] == translator.pipeline.tokenizers.target.marks.begin
    assert told["system"] == "transformer"
    assert [path.name for path in translator.folder.parent.iterdir()] == ["translator"], "nothing is left beside it"


def test_the_example_of_the_page_runs(
    translator: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo-onnx").symlink_to(translator.folder)
    assert run_page("onnxruntime", capsys) == translator.pipeline("twenty-three", beam=1, longest=24)


# ---- a GPT and a BERT


def test_a_gpt_reads_a_prompt_at_once_and_goes_on(gpt: Exported) -> None:
    tokenizer = gpt.pipeline.tokenizers.target
    marks, tokens, said = tokenizer.marks, np.array([tokenizer.encode("two hundred")]), []
    past = [np.zeros((1, 3, 0, 8), np.float32)] * 2
    for _ in range(10):
        logits, *past = gpt.run("model.onnx", tokens, *past)
        logits[:, -1, list(marks.unsayable)] = -np.inf
        tokens = logits[:, -1:].argmax(-1)
        said.append(int(tokens[0, 0]))
    (answer,) = gpt.pipeline.answer(["two hundred"], beam=1, longest=10)  # type: ignore[attr-defined]
    assert tuple(said[: len(answer.hypotheses[0].tokens)]) == answer.hypotheses[0].tokens


@pytest.mark.parametrize("shape", [(1, 1), (4, 17), (2, 100)])
def test_a_bert_tells_the_same_of_texts_of_any_length(bert: Exported, shape: tuple[int, int]) -> None:
    model = bert.pipeline.model
    tokens = torch.randint(4, bert.pipeline.tokenizers.target.size, shape)
    segments = torch.randint(0, 2, shape)
    real = torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1))
    hidden, logits, after = map(torch.from_numpy, bert.run("model.onnx", tokens, real, segments))
    with torch.inference_mode():
        expected = model(tokens, real, segments)
        guessed, followed = model.masked.logits(expected), model.next(model.summary(expected))  # type: ignore[union-attr, operator]
    torch.testing.assert_close(hidden[real], expected[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[real], guessed[real], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after, followed, atol=1e-5, rtol=1e-5)


# ---- what is refused


@pytest.mark.parametrize(
    ("system", "settings", "sentence"),
    [
        ("seq2seq", {}, "a Seq2Seq goes from word to word in a loop, .*; export a bert, a gpt or a transformer"),
        ("recurrent", {}, "a LanguageModel goes from word to word in a loop"),
        ("tcn", {}, "a TCN has no ONNX graph of ours yet; export a bert, a gpt or a transformer"),
        ("transformer", {"score": "location"}, "score: 'location' has rows for some positions.*; export a model with"),
    ],
    ids=str,
)
def test_what_no_graph_can_hold_is_refused(
    tmp_path: Path, system: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        export_onnx(made(system, **settings), tmp_path / "out")
    assert not list(tmp_path.iterdir())


class Undecided(torch.nn.Module):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + 1 if tokens.sum() > 3 else tokens  # which of the two no graph can know beforehand


def test_what_the_exporter_cannot_draw_is_one_sentence(tmp_path: Path) -> None:
    graph = Graph(Undecided(), (torch.ones(2, 3),), ({0: "batch"},), ("tokens",), ("more",))
    with pytest.raises(RegardError, match=r"model.onnx: the exporter of torch .* cannot draw this graph \(.*\); try"):
        graph.write(tmp_path / "model.onnx")


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already; name a folder that is not, or remove it first"):
        export_onnx(made("gpt"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_engine_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RegardError, match=rf"needs {module}; write pip install 'regard\[onnx\]'"):
        export_onnx(made("gpt"), tmp_path / "out")


# ---- everything else that a recipe can ask for


@pytest.mark.storm
@pytest.mark.parametrize(
    ("system", "task", "settings"),
    [
        ("gpt", "language", {"norm": "post", "bias": False, "context": 20}),
        ("gpt", "classify", {"labels": 3}),
        ("bert", "masked", {"head": "none"}),
        ("bert", "masked", {"head": "none", "pooler": "none"}),
        ("bert", "masked", {"head": "masked", "tied": False, "offset": 2, "segments": 0}),
        ("bert", "classify", {"head": "sentence", "labels": 3}),
        ("bert", "classify", {"head": "words", "labels": 3}),
        *(("transformer", "rewrite", {"score": name}) for name in ("dot", "general", "concat", "mlp", "cosine")),
        *(("transformer", "rewrite", {"normalise": name}) for name in ("batch", "layer_unbiased", "none")),
        ("transformer", "rewrite", {"positions": "learned", "context": 40, "source_positions": "own", "offset": 2}),
        ("transformer", "rewrite", {"embedding_norm": True, "head_bias": True, "bias": True, "tied": "words"}),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_model_gives_the_same(tmp_path: Path, system: str, task: str, settings: dict[str, Any]) -> None:
    check = export_onnx(made(system, task, **{"layers": 1, **settings}), tmp_path / "out")
    assert check.difference < 1e-5 * check.scale
    assert check.equal == check.of
