"""CTranslate2 writes what we write, token for token."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import tiny
import torch
from interop.made import made

import regard
from regard.data.batch import pad
from regard.data.tokenizer import Tokenizer, Tokenizers
from regard.decode.search import average, beam
from regard.errors import ConfigError, RegardError
from regard.interop.ctranslate2 import export_ctranslate2
from regard.interop.engine import random_words
from regard.pipeline import Pipeline
from regard.pipeline.rewrite import Rewriter

TRANSFORMERS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "bias": True, "activation": "gelu"},
    {"tied": "none", "activation": "gelu_tanh", "layers": 1, "decoder_layers": 3},
    {"joint": False, "tied": "target", "heads": 1},
    {"positions": "learned", "context": 40, "norm": "pre", "offset": 2, "source_positions": "own", "scaled": False},
    {"positions": "halves", "embedding_norm": True, "head_bias": True, "tied": "words", "activation": "silu"},
]
GPTS: list[dict[str, Any]] = [
    {},
    {"norm": "post", "activation": "gelu"},
    {"bias": False, "activation": "relu", "context": 20, "epsilon": 1e-3, "heads": 1, "tied": False},
]


def names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.inner.id_to_token(i) for i in ids]


def translator(folder: Path) -> Any:
    return ctranslate2.Translator(str(folder), compute_type="float32", intra_threads=1)


@pytest.mark.parametrize("settings", TRANSFORMERS, ids=str)
def test_every_kind_of_transformer_writes_the_same(tmp_path: Path, settings: dict[str, Any]) -> None:
    pipeline = made("transformer", **settings)
    check = export_ctranslate2(pipeline, tmp_path / "out")
    assert check.difference < 1e-5 * check.scale
    assert check.equal == check.of > 20
    beams_score_the_same(pipeline, tmp_path / "out")


def beams_score_the_same(pipeline: Pipeline, folder: Path) -> None:
    """What a beam finds there is worth as much here. Ours goes on while there is a better one, so it finds no worse."""
    model, tokenizers = pipeline.model, pipeline.tokenizers
    marks, dice, limit = tokenizers.source.marks, torch.Generator().manual_seed(1), 16
    sources = [torch.randint(4, tokenizers.source.size, (n,), generator=dice).tolist() for n in (5, 9, 2)]
    theirs = translator(folder).translate_batch(
        [names(tokenizers.source, row) for row in sources],
        beam_size=4, num_hypotheses=4, max_decoding_length=limit, min_decoding_length=0, return_scores=True,
    )  # fmt: skip
    for row, answer in zip(sources, theirs, strict=True):
        source, real = pad([marks.source(row)], marks.pad)
        for words, score in zip(answer.hypotheses, answer.scores, strict=True):
            said = [tokenizers.target.inner.token_to_id(word) for word in words]
            target = torch.tensor([[marks.begin, *said, *[marks.end] * (len(said) < limit)]])
            with torch.no_grad():
                hidden, _ = model(source, real, target[:, :-1])  # type: ignore[operator]
                chances = model.head.logprobs(hidden, target[:, 1:])  # type: ignore[operator, union-attr]
            assert float(chances.mean()) == pytest.approx(score, rel=1e-5)
        (found,) = beam(
            model.step, model.start(source, real), torch.tensor([[marks.begin]]),  # type: ignore[operator]
            eos=marks.end, limit=limit, keep=4, expand=8, penalty=average(1.0),
        )  # fmt: skip
        assert max(h.score for h in found) >= answer.scores[0] - 1e-5


@pytest.mark.parametrize("settings", GPTS, ids=str)
def test_every_kind_of_gpt_goes_on_the_same(tmp_path: Path, settings: dict[str, Any]) -> None:
    check = export_ctranslate2(made("gpt", **settings), tmp_path / "out")
    assert check.difference < 1e-5 * check.scale
    assert check.equal == check.of > 20


@pytest.fixture(scope="module")
def model() -> Rewriter:
    return regard.load(tiny.trained())


@pytest.fixture(scope="module")
def folder(model: Rewriter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("ctranslate2") / "out"
    export_ctranslate2(model, home)
    return home


def test_a_trained_model_gives_the_same_texts(model: Rewriter, folder: Path) -> None:
    texts = [source for source, _ in tiny.pairs(30)]
    tokenizers = model.tokenizers
    said = translator(folder).translate_batch(
        [names(tokenizers.source, tokenizers.source.encode(text)) for text in texts],
        beam_size=1, max_decoding_length=48, min_decoding_length=0,
        suppress_sequences=json.loads((folder / "regard.json").read_text("utf-8"))["suppress_sequences"],
    )  # fmt: skip
    theirs = [
        tokenizers.target.decode(tokenizers.target.inner.token_to_id(name) for name in answer.hypotheses[0])
        for answer in said
    ]
    assert theirs == model(texts, beam=1, longest=48)
    assert len(set(theirs)) > 10, "it has learnt to answer differently"


def test_the_folder_is_whole_with_its_vocabularies(model: Rewriter, folder: Path) -> None:
    held = sorted(path.name for path in folder.iterdir())
    assert held == [
        "config.json", "model.bin", "regard.json", "source_vocabulary.json",
        "target_vocabulary.json", "tokenizer.json", "tokenizer.source.json",
    ]  # fmt: skip
    told = json.loads((folder / "regard.json").read_text("utf-8"))
    assert told["marks"] == {"pad": "<pad>", "begin": "<bos>", "end": "<eos>", "unknown": "<unk>"}
    assert Tokenizer.load(folder / "tokenizer.json").fingerprint == model.tokenizers.target.fingerprint
    assert list(folder.parent.iterdir()) == [folder], "nothing is left beside it"


def test_a_matrix_that_is_shared_is_written_once(tmp_path: Path) -> None:
    sizes = {}
    for tied in ("all", "none"):
        pipeline = made("transformer", tied=tied, vocab=made("transformer").tokenizers.target.size, dim=48)
        export_ctranslate2(pipeline, tmp_path / tied)
        sizes[tied] = (tmp_path / tied / "model.bin").stat().st_size
    matrix = 4 * 48 * made("transformer").tokenizers.target.size
    assert sizes["none"] - sizes["all"] == pytest.approx(2 * matrix, abs=200)


@pytest.mark.parametrize(
    ("system", "settings", "sentence"),
    [
        (
            "transformer",
            {"score": "cosine"},
            'score: CTranslate2 knows "scaled_dot" and not "cosine"; export',
        ),
        ("transformer", {"normalise": "batch"}, 'normalise: CTranslate2 knows "layer" and not "batch"'),
        ("gpt", {"labels": 3}, "labels: a CTranslate2 generator writes and tells no labels; export it to onnx"),
        ("seq2seq", {}, "no place for a Seq2Seq of ours; export a transformer or a gpt"),
        ("bert", {}, "no place for a Bert of ours; export a transformer or a gpt, or a bert to onnx"),
    ],
    ids=str,
)
def test_what_cannot_be_said_there_is_refused(
    tmp_path: Path, system: str, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        export_ctranslate2(made(system, **settings), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def with_marks(pipeline: Pipeline, **marks: Any) -> Pipeline:
    inner = pipeline.tokenizers.target.inner
    both = Tokenizer(inner, replace(pipeline.tokenizers.target.marks, **marks))
    return replace(pipeline, tokenizers=Tokenizers(both, both))


@pytest.mark.parametrize(
    "marks",
    [{"begin": 0}, {"begin": 2, "before": (1,), "opening": (1,)}, {"pad": 5, "begin": 5, "end": 4, "unknown": None}],
    ids=str,
)
def test_marks_are_those_of_the_vocabulary(tmp_path: Path, marks: dict[str, Any]) -> None:
    """Marian starts with its <pad>; BART with its end, and puts <s> before each source; others have other numbers."""
    pipeline = with_marks(made("transformer", bias=True), **marks)
    check = export_ctranslate2(pipeline, tmp_path / "out")
    assert check.difference < 1e-5 * check.scale
    assert check.equal == check.of > 5
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert [config["decoder_start_token"]] == names(pipeline.tokenizers.target, [marks["begin"]])
    assert config["add_source_bos"] == ("before" in marks)
    told = json.loads((tmp_path / "out" / "regard.json").read_text("utf-8"))
    assert told["target_prefix"] == names(pipeline.tokenizers.target, list(marks.get("opening", ())))


def test_two_marks_before_a_source_are_refused(tmp_path: Path) -> None:
    pipeline = with_marks(made("transformer"), before=(1, 3))
    with pytest.raises(ConfigError, match="puts one mark before a source, but 2 are wanted; export it to onnx"):
        export_ctranslate2(pipeline, tmp_path / "out")


def test_norms_that_differ_are_refused(tmp_path: Path) -> None:
    pipeline = made("gpt")
    pipeline.model.norm.eps = 0.5  # type: ignore[union-attr, assignment]
    with pytest.raises(
        ConfigError, match=r"epsilon: .* has one for all norms, but the model has \[1e-05, 0.5\]; export"
    ):
        export_ctranslate2(pipeline, tmp_path / "out")


def test_what_fails_its_check_is_not_written(tmp_path: Path) -> None:
    pipeline = made("gpt")
    with torch.no_grad():
        pipeline.model.blocks[0].feed_forward.wide.bias[3] = torch.nan  # type: ignore[union-attr, index]
    with pytest.raises(RegardError, match=r"differs by at most inf of .* was wanted; nothing was written"):
        export_ctranslate2(pipeline, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already; name a folder that is not, or remove it first"):
        export_ctranslate2(made("gpt"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_the_engine_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(RegardError, match=r"needs ctranslate2; write pip install 'regard\[ctranslate2\]'"):
        export_ctranslate2(made("gpt"), tmp_path / "out")


def test_a_check_is_a_sentence(tmp_path: Path) -> None:
    said = str(export_ctranslate2(made("gpt"), tmp_path / "out"))
    assert said.startswith(f"ctranslate2 {ctranslate2.__version__} differs by at most ")
    assert "(tried 1×1, 2×7, 3×33); 60 of 60 greedy tokens are the same" in said


def test_pieces_of_either_side_have_their_plain_names_there(tmp_path: Path) -> None:
    """Marian's two sides cut otherwise and share one list of names."""
    from interop.foreign import speak

    speak("MarianMTModel", tmp_path / "hf")
    pipeline = regard.load(tmp_path / "hf", device="cpu")
    check = export_ctranslate2(pipeline, tmp_path / "out")
    assert check.equal == check.of > 20
    names = json.loads((tmp_path / "out" / "shared_vocabulary.json").read_text("utf-8"))
    assert names == [pipeline.tokenizers.target.words()[i] for i in range(len(names))]
    assert not any("\ufdd0" in name for name in names)


def test_a_check_reads_words_of_the_model_alone() -> None:
    """A foreign vocabulary may have tokens beyond the model's table."""
    whole = Tokenizer.train(["a b c d e f"], kind="word", size=20)
    marks = replace(whole.marks, mask=whole.inner.token_to_id("a"))
    short = Tokenizer(whole.inner, marks, whole.size - 2)
    drawn = {i for row in random_words(short, [200], torch.Generator().manual_seed(0)) for i in row}
    assert drawn == set(range(short.size)) - marks.all
