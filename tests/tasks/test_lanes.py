"""Language modelling along lanes: what a state is carried through, what is counted, and that a stopped run goes on."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.config import TrainConfig
from regard.core.autoregressive import Autoregressive
from regard.core.head import Loss
from regard.data.stream import Excerpts, Piece, Stream
from regard.data.tokenizer import EOS, UNK, Tokenizer
from regard.errors import CheckpointError, ConfigError, DataError
from regard.models import gpt, recurrent, tcn
from regard.tasks import last_word
from regard.tasks.language import Language, measure
from regard.training import Run, Stopped, settle, start, train
from regard.training.checkpoint import found
from regard.training.log import read_metrics

TEXT = "the cat sat on the mat and the dog sat on the log; "
LINES = ["the cat sat on the mat", "a dog sat", "the log sat on the mat and the cat", "on"]


def lstm(vocab: int, dropout: float = 0.0) -> recurrent.LanguageModel:
    torch.manual_seed(0)
    config = recurrent.Config(vocab=vocab, dim=12, embedding=8, layers=2, dropout=dropout)
    return louder(recurrent.LanguageModel(config))


def transformer(vocab: int, context: int = 16) -> gpt.GPT:
    torch.manual_seed(0)
    return louder(gpt.GPT(gpt.Config(vocab=vocab, dim=16, heads=2, layers=1, context=context, dropout=0)))


def louder(model: Any) -> Any:
    """Random weights, large enough that it has opinions."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    return model.eval()


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train([TEXT], kind="char", size=100)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return Tokenizer.train(LINES, kind="word", size=100)


@pytest.fixture
def stream(letters: Tokenizer, tmp_path: Path) -> Stream:
    return Stream.build(tmp_path / "s", [Piece(TEXT * 3), Piece(TEXT), Piece(TEXT[:9]), Piece(TEXT)], letters)


def task_of(letters: Tokenizer, stream: Stream, **how: Any) -> Language:
    settings = {"window": 8, "tokens": 24, "seed": 0, "order": "lanes"} | how
    return Language(letters, stream, {"valid": stream}, **settings)


def one_pass(model: Autoregressive, ids: list[int]) -> list[float]:
    """Negative log-likelihood of each token but the first, given all before it."""
    with torch.inference_mode():
        hidden, _ = model(None, None, torch.tensor([ids[:-1]]))
        logprobs = model.head.logits(hidden)[0].log_softmax(-1)
    return [-float(line[token]) for line, token in zip(logprobs, ids[1:], strict=True)]


def tokens_of(stream: Stream) -> list[int]:
    return stream.read(np.array([0]), len(stream))[0].tolist()


def total(loss: Loss) -> float:
    return loss.total.item()


# ---- the state that is carried


@pytest.mark.parametrize("apart", [False, True])
def test_a_lane_read_window_by_window_is_the_lane_read_at_once(letters: Tokenizer, stream: Stream, apart: bool) -> None:
    model = lstm(letters.size).double()  # it is loud, and roundings grow from step to step
    task = task_of(letters, stream, apart=apart)
    steps = task.windows.steps()  # type: ignore[attr-defined]
    batches = [task.batch("train", step) for step in range(steps)]
    carry, lost = None, []
    for batch in batches:
        loss = task.loss(model, batch, carry)
        lost.append(total(loss))
        carry = loss.carry
    text = torch.cat([batches[0].text, *(batch.text[:, 1:] for batch in batches[1:])], 1)
    documents = (text[:, :-1] == EOS).cumsum(1) if apart else None
    whole = task.loss(model, Excerpts(text, documents, batches[0].ids), None)
    assert sum(lost) == pytest.approx(total(whole), rel=1e-5)
    for one, other in zip(whole.carry["past"], carry["past"], strict=True):
        torch.testing.assert_close(one, other)
    alone = [total(task.loss(model, batch, None)) for batch in batches]
    assert alone[0] == pytest.approx(lost[0])
    assert sum(alone) != pytest.approx(sum(lost), rel=1e-3), "what was read before matters"


def test_the_carry_is_that_of_this_text_or_none(letters: Tokenizer, stream: Stream) -> None:
    """At the end of the lanes, and where data was left out, the model begins anew."""
    model, task = lstm(letters.size), task_of(letters, stream)
    steps = task.windows.steps()  # type: ignore[attr-defined]
    carry = task.loss(model, task.batch("train", 0), None).carry
    for other in (2, steps, steps + 1):
        batch = task.batch("train", other)
        assert total(task.loss(model, batch, carry)) == total(task.loss(model, batch, None))
    batch = task.batch("train", 1)
    assert total(task.loss(model, batch, carry)) != total(task.loss(model, batch, None))
    fewer = task_of(letters, stream, tokens=16).batch("train", 1)
    assert total(task.loss(model, fewer, carry)) == total(task.loss(model, fewer, None))


def test_no_gradient_goes_through_the_carry(letters: Tokenizer, stream: Stream) -> None:
    model, task = lstm(letters.size), task_of(letters, stream)
    carry = task.loss(model, task.batch("train", 0), None).carry
    assert all(tensor.grad_fn is None and not tensor.requires_grad for tensor in carry["past"])
    task.loss(model, task.batch("train", 1), carry).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_only_what_stays_of_one_size_is_carried_and_only_along_lanes(letters: Tokenizer, stream: Stream) -> None:
    for model, order in ((transformer(letters.size), "lanes"), (lstm(letters.size), "random")):
        task = task_of(letters, stream, order=order)
        assert task.loss(model, task.batch("train", 0), None).carry is None
    overlapping = task_of(letters, stream, context=3)
    assert overlapping.loss(transformer(letters.size), overlapping.batch("train", 0), None).count == 3 * 5
    with pytest.raises(ConfigError, match=r'data.context = 3 with data.order = "lanes": this model has the state of'):
        overlapping.loss(lstm(letters.size), overlapping.batch("train", 0), None)


@pytest.mark.parametrize("order", ["random", "lanes"])
def test_context_is_read_and_not_counted(letters: Tokenizer, stream: Stream, order: str) -> None:
    model, task = transformer(letters.size), task_of(letters, stream, order=order, context=5)
    batch = task.batch("train", 1)
    loss = task.loss(model, batch, None)
    assert loss.count == batch.tokens == 3 * 3
    wanted = sum(sum(one_pass(model, row)[5:]) for row in batch.text.tolist())
    assert total(loss) == pytest.approx(wanted, rel=1e-5)


def test_how_the_text_is_read_belongs_to_the_name_of_the_data(letters: Tokenizer, stream: Stream) -> None:
    plain = task_of(letters, stream, order="random")
    names = {task_of(letters, stream, order=o, context=c).fingerprint for o in ("random", "lanes") for c in (0, 2)}
    assert len(names) == 4
    assert plain.fingerprint in names


# ---- runs that are stopped


def go(folder: Path, task: Any, vocab: int, **changes: Any) -> Run:
    settings = {
        "steps": 17, "warmup": 2, "rate": 0.01, "threads": 1, "log_every": 3, "evaluate_every": 6, "save_every": 5,
    }  # fmt: skip
    config = TrainConfig(**settings | changes)
    device = settle(config)
    run = start(folder, lstm(vocab, dropout=0.2), config, device=device)
    train(run, task, config, lambda text: None)
    return run


def end_of(folder: Path) -> dict[str, Any]:
    last = found(folder / "checkpoints")[-1]
    files = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    times = {"seconds", "tokens_per_second", "seconds_per_step"}
    log = [{k: v for k, v in line.items() if k not in times} for line in read_metrics(folder / "metrics.jsonl")]
    state = json.loads((last / "state.json").read_bytes())
    return files | {"log": log, "state": {k: v for k, v in state.items() if k not in times}}


class Told(Language):
    """In the middle of the batch with this number the process is told to stop."""

    at = -1

    def batch(self, split: str, step: int, rank: int = 0, world: int = 1) -> Excerpts:
        if step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().batch(split, step, rank, world)


@pytest.mark.parametrize(
    ("stop", "changes"),
    [(1, {}), (8, {}), (13, {}), (8, {"accumulate": 2}), (8, {"optimizer": "sgd", "rate": 1.0})],
)
def test_truncated_back_propagation_resumes_bit_for_bit(
    letters: Tokenizer, stream: Stream, tmp_path: Path, stop: int, changes: dict[str, Any]
) -> None:
    """Stopped in mid-lane: the carry is in the checkpoint."""
    how: dict[str, Any] = {"window": 8, "tokens": 24, "seed": 0, "order": "lanes"}
    told = Told(letters, stream, {"valid": stream}, **how)
    told.at = stop * changes.get("accumulate", 1)
    with pytest.raises(Stopped, match=f"at step {stop} of 17"):
        go(tmp_path / "a", told, letters.size, **changes)
    state = json.loads((found(tmp_path / "a" / "checkpoints")[-1] / "state.json").read_bytes())
    assert state["carry"]["dict"].keys() == {"past", "at"}
    go(tmp_path / "a", task_of(letters, stream), letters.size, **changes)
    go(tmp_path / "b", task_of(letters, stream), letters.size, **changes)
    assert end_of(tmp_path / "a") == end_of(tmp_path / "b")


class Forgetful(Language):
    """Drops the carry, as one would that is not in the checkpoint."""

    def loss(self, model: nn.Module, batch: Excerpts, carry: Any) -> Loss:
        return super().loss(model, batch, None)


def test_without_the_carry_it_would_be_another_run(letters: Tokenizer, stream: Stream, tmp_path: Path) -> None:
    how: dict[str, Any] = {"window": 8, "tokens": 24, "seed": 0, "order": "lanes"}
    go(tmp_path / "a", task_of(letters, stream), letters.size)
    go(tmp_path / "b", Forgetful(letters, stream, {"valid": stream}, **how), letters.size)
    assert end_of(tmp_path / "a")["model.safetensors"] != end_of(tmp_path / "b")["model.safetensors"]


class Bad(Language):
    """One batch goes wrong. Notes down which batches went on from a state."""

    at = -1

    def loss(self, model: nn.Module, batch: Excerpts, carry: Any) -> Loss:
        number = next(i for i in range(99) if self.windows.batch(i).ids == batch.ids)
        goes_on = carry is not None and carry["at"] == list(batch.ids)
        self.seen = [*getattr(self, "seen", []), (number, goes_on)]
        loss = super().loss(model, batch, carry)
        return replace(loss, total=loss.total * math.nan) if number == self.at else loss


@pytest.mark.parametrize("on_nan", ["skip", "rewind"])
def test_after_a_bad_batch_lanes_begin_anew(letters: Tokenizer, stream: Stream, tmp_path: Path, on_nan: str) -> None:
    """What lies between the state and the next text is not made up."""
    task = Bad(letters, stream, {"valid": stream}, window=8, tokens=24, seed=0, order="lanes")
    task.at = 5
    go(tmp_path, task, letters.size, steps=8, on_nan=on_nan, save_every=2, evaluate_every=0)
    seen = task.seen[1:9]  # the first is for counting arithmetic
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [goes_on for _, goes_on in seen] == [False, True, True, True, True, True, False, True]


def test_a_run_is_not_resumed_with_another_optimizer(letters: Tokenizer, stream: Stream, tmp_path: Path) -> None:
    go(tmp_path, task_of(letters, stream), letters.size, steps=3)
    with pytest.raises(CheckpointError, match=r"it was trained with adamw; resume it with its own recipe\.toml, or"):
        go(tmp_path, task_of(letters, stream), letters.size, steps=5, optimizer="sgd")
    assert found(tmp_path / "checkpoints")


# ---- what evaluation counts


def test_a_carrying_model_reads_the_text_as_one(letters: Tokenizer, stream: Stream) -> None:
    model, ids = lstm(letters.size), tokens_of(stream)
    whole = one_pass(model, ids)
    for tokens in (1, 24, 10_000):
        found = measure(model, letters, stream, window=8, tokens=tokens, order="lanes")
        assert found["loss"] == pytest.approx(sum(whole) / len(whole), rel=1e-5)
    assert f"{len(ids) - 1} tokens, each given all before it, the state handed on" in found["bits"].definition  # type: ignore[attr-defined]
    assert found == pytest.approx(task_of(letters, stream).evaluate(model, "valid"), rel=1e-6)
    apart = measure(model, letters, stream, window=8, tokens=7, order="lanes", apart=True)
    ends = [i for i, token in enumerate(ids[:-1]) if token == EOS]
    pieces = [ids[a : b + 1] for a, b in zip([0, *ends], [*ends, len(ids) - 1], strict=True)]
    alone = [x for piece in pieces for x in one_pass(model, piece)]
    assert apart["loss"] == pytest.approx(sum(alone) / len(whole), rel=1e-5)
    assert "each given all before it in its document, the state" in apart["loss"].definition  # type: ignore[attr-defined]


@pytest.mark.parametrize("order", ["random", "lanes"])
def test_each_token_is_counted_once_with_its_context(letters: Tokenizer, stream: Stream, order: Any) -> None:
    model, ids = transformer(letters.size), tokens_of(stream)
    found = measure(model, letters, stream, window=8, tokens=40, context=5, order=order)
    expected = one_pass(model, ids[:9])
    for first in range(3, len(ids) - 1, 3):
        expected += one_pass(model, ids[first : first + 9])[5:]
    assert len(expected) == len(ids) - 1
    assert found["loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    what = f"{len(expected)} tokens, each given the 5 before it or more, in windows of 8 that overlap by as many"
    assert found["loss"].definition == f"mean negative log-likelihood of {what}"  # type: ignore[attr-defined]


def test_a_model_that_hears_no_further_than_its_context_is_measured_as_if_it_had_read_all(
    letters: Tokenizer, stream: Stream
) -> None:
    torch.manual_seed(0)
    config = tcn.Config(vocab=letters.size, dim=8, embedding=8, levels=2, kernel=3, dropout=0, embedding_dropout=0)
    model = tcn.TCN(config).eval()
    nn.init.normal_(model.words.weight)
    whole, enough = one_pass(model, tokens_of(stream)), model.receptive_field - 1
    for context, same in ((enough, True), (enough // 2, False)):
        found = measure(model, letters, stream, window=24, tokens=96, context=context)
        assert (found["loss"] == pytest.approx(sum(whole) / len(whole), rel=1e-5)) == same


def test_the_official_count_leaves_out_the_beginning(letters: Tokenizer, stream: Stream, tmp_path: Path) -> None:
    model, ids = transformer(letters.size), tokens_of(stream)
    found = measure(model, letters, stream, window=8, tokens=40, context=5, counted="official")
    expected = [x for first in range(0, len(ids) - 6, 3) for x in one_pass(model, ids[first : first + 9])[5:]]
    assert len(expected) == len(ids) - 6
    assert found["loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    said = found["loss"].definition  # type: ignore[attr-defined]
    assert said.endswith(
        "; the first 6 tokens of the text and what does not fill a part left out, as the TCN's authors do"
    )

    spoken = Tokenizer.train([TEXT], kind="word", size=100)
    text = Stream.build(tmp_path / "w", [Piece(TEXT * 20)], spoken)
    ten = measure(lstm(spoken.size), spoken, text, window=8, tokens=40, order="lanes", counted="official")
    length = len(text) // 10
    ids = tokens_of(text)[: 10 * length]
    expected = [x for i in range(10) for x in one_pass(lstm(spoken.size), ids[i * length : (i + 1) * length])]
    assert ten["loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert "the first token of each of 10 parts of the text" in ten["loss"].definition  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="the held-out text has 7 tokens, and nothing to predict; give more"):
        measure(model, spoken, text.split(1 - 7.5 / len(text))[0], window=8, counted="official")


# ---- the last word of each line


def line_loss(model: Autoregressive, ids: list[int], last: int) -> float:
    return sum(one_pass(model, [EOS, *ids])[-last:])


@pytest.mark.parametrize("kind", ["word", "char", "bpe"])
def test_the_last_word_is_predicted_from_the_line_before_it(tmp_path: Path, kind: Any) -> None:
    tokenizer = Tokenizer.train(LINES, kind=kind, size=300 if kind == "bpe" else 100)
    model = lstm(tokenizer.size)
    text = Stream.build(tmp_path / "s", map(Piece, LINES), tokenizer)
    coded = tokenizer.encode_many(LINES)
    lasts = {
        "word": [1, 1, 1, 1],
        "char": [4, 4, 4, 2],
        "bpe": [len(tokenizer.encode(line)) - len(tokenizer.encode(line.rpartition(" ")[0])) for line in LINES],
    }[kind]
    expected = sum(map(line_loss, [model] * 4, coded, lasts)) / 4
    for tokens in (1, 1000):
        found = last_word.measure(model, tokenizer, text, tokens=tokens)
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
        assert found["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    said = "the last word of 4 lines, with the space before it, each given its line"
    assert found["perplexity"].definition == f"exp of the mean negative log-likelihood of {said}"  # type: ignore[attr-defined]
    whole = measure(model, tokenizer, text, window=8, counted="last_word")
    assert dict(whole) == pytest.approx(dict(found))


class Recites(nn.Module):
    """Knows one text by heart, by its words before."""

    def __init__(self, vocab: int, knows: Callable[[list[int]], int]) -> None:
        super().__init__()
        self.knows, self.longest = knows, 9
        self.head = recurrent.LanguageModel(recurrent.Config(vocab=vocab, dim=vocab, embedding=vocab, tied=False)).head
        with torch.no_grad():
            self.head.weight.copy_(9 * torch.eye(vocab))

    def forward(self, source: None, real: None, tokens: Tensor) -> tuple[Tensor, None]:
        rows = [[self.knows(row[: t + 1]) for t in range(len(row))] for row in tokens.tolist()]
        return nn.functional.one_hot(torch.tensor(rows), self.head.weight.shape[1]).float(), None


def test_a_model_that_knows_the_answers_is_right(words: Tokenizer, tmp_path: Path) -> None:
    """And one that is a word late, as where the answer is fed and the word after it compared, is not."""
    text = Stream.build(tmp_path / "s", map(Piece, [*LINES[:3], "a cat unheard"]), words)
    lines = [[EOS, *ids.tolist()] for ids in text.documents()]
    after = {tuple(line[:t]): line[t] for line in lines for t in range(1, len(line))}
    right = last_word.measure(Recites(words.size, lambda row: after.get(tuple(row), UNK)), words, text)
    late = last_word.measure(Recites(words.size, lambda row: row[-1]), words, text)
    assert right["accuracy"] == 75, "the unknown word is never told"
    assert late["accuracy"] == 0
    assert "likeliest token after token, in % of the last word of 4 lines" in right["accuracy"].definition  # type: ignore[attr-defined]


def test_the_official_last_word_is_asked_for_after_it_was_read(words: Tokenizer, tmp_path: Path) -> None:
    """So who knows the answers is wrong, and who says each word twice is right."""
    text = Stream.build(tmp_path / "s", map(Piece, LINES[:3]), words)
    lines = [[EOS, *ids.tolist()] for ids in text.documents()]
    after = {tuple(line[:t]): line[t] for line in lines for t in range(1, len(line))}
    knows, repeats = (
        measure(Recites(words.size, said), words, text, window=8, counted="official_last_word")
        for said in (lambda row: after.get(tuple(row), UNK), lambda row: row[-1])
    )
    assert (knows["accuracy"], repeats["accuracy"]) == (0, 100)
    said = "3 lines, with the space before it, each given its line and itself, as the TCN's authors do"
    assert said in repeats["loss"].definition  # type: ignore[attr-defined]
    model = lstm(words.size)
    expected = sum(one_pass(model, [*line, line[-1]])[-1] for line in lines) / 3
    found = measure(model, words, text, window=8, counted="official_last_word")
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_line_is_cut_at_its_beginning_where_a_model_cannot_read_it_all(words: Tokenizer, tmp_path: Path) -> None:
    text = Stream.build(tmp_path / "s", [Piece(" ".join(LINES))], words)
    model = transformer(words.size, context=4)
    (line,) = text.documents()
    ids = line.tolist()
    found = last_word.measure(model, words, text)
    assert found["loss"] == pytest.approx(one_pass(model, ids[-5:])[-1], rel=1e-5)
    official = last_word.measure(model, words, text, ahead=0)
    assert official["loss"] == pytest.approx(one_pass(model, [*ids[-4:], ids[-1]])[-1], rel=1e-5)
    with pytest.raises(DataError, match="has 2 tokens and no line, so no last word; give lines of text"):
        last_word.measure(model, words, Stream.build(tmp_path / "n", map(Piece, ["", ""]), words))
