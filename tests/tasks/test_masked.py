"""BERT's pre-training: the two losses, how they add up, what is measured, and masks that are filled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor, nn

from regard.config.task import MaskedTask
from regard.data.documents import Documents, Sentence
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.errors import ConfigError, DataError
from regard.metrics import Measure
from regard.models.bert import Bert, Config
from regard.tasks.masked import MEASURES, Masked, MaskedBatch, fill, in_order, layouts_of

NAMES = ["anna", "bert", "carl", "dora"]
DEEDS = ["walks", "sleeps", "reads", "sings"]
TOKENIZER = Tokenizer.train([" ".join([*NAMES, *DEEDS, "slowly ."])] * 9, kind="wordpiece", size=100, marks=["mask"])


def documents(folder: Path, count: int = 12, seed: int = 0) -> Documents:
    """Each document is of one person, who always does the same."""
    chance = Random(seed)
    sentences = [
        Sentence(0, f"{NAMES[who % 4]} {DEEDS[who % 4]} {'slowly ' * chance.randrange(4)}.", first=number == 0)
        for who in range(count)
        for number in range(6)
    ]
    return Documents.build(folder, sentences, TOKENIZER, bad=BadLines())


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Masked]:
    def task(*, tokens: int = 320, steps: int = 100, longest: int = 32, **settings: object) -> Masked:
        train = documents(tmp_path / "train")
        held = {"valid": documents(tmp_path / "valid", seed=1)}
        how = MaskedTask(**settings)  # type: ignore[arg-type]
        return Masked(TOKENIZER, train, held, tokens=tokens, steps=steps, seed=0, longest=longest, task=how)

    return task


def bert(dim: int = 32) -> Bert:
    torch.manual_seed(0)
    config = Config(
        vocab=TOKENIZER.size, dim=dim, heads=2, layers=2, hidden=64, context=64,
        dropout=0.0, attention_dropout=0.0, head="pretrain",
    )  # fmt: skip
    return Bert(config)


def same(one: MaskedBatch, other: MaskedBatch) -> bool:
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(MaskedBatch)]
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_a_batch_is_a_function_of_its_step(make: Callable[..., Masked]) -> None:
    task, again = make(), make()
    for step in (7, 0, 1000, 7):
        assert same(task.batch("train", step), again.batch("train", step))
    assert not same(task.batch("train", 0), task.batch("train", 1))
    with pytest.raises(ValueError, match="only training draws batches by step; 'valid'"):
        task.batch("valid", 0)


def test_a_batch_says_what_was_hidden(make: Callable[..., Masked]) -> None:
    task = make()
    batch = task.batch("train", 3)
    whole = batch.shown.clone()
    whole.view(-1)[batch.at] = batch.words
    _, layout, places = task.long.turn(3, 0, 1, tokens=320)
    assert batch.ids == tuple(places.tolist())
    assert whole.tolist() == task.long.gather(layout, places, TOKENIZER.marks).tokens.tolist()
    assert batch.tokens == len(batch.at) == task.masking.count(batch.real.sum(1).numpy()).sum()
    assert batch.shown.numel() <= 320


@pytest.mark.parametrize("copies", [0, 2])
def test_static_masks_come_back_and_dynamic_ones_do_not(make: Callable[..., Masked], copies: int) -> None:
    """Epochs of as many steps as all layouts have, so that the same sequences come again in another order."""
    task = make(copies=copies)
    layouts, seen = task.long, list[set[tuple[int, ...]]]()
    cycle = len(layouts.records)
    step = 0
    while (epoch := int(task.epoch(step))) < cycle + 1:
        if epoch % cycle == 0:
            batch = task.batch("train", step)
            seen = seen if len(seen) == 1 + epoch // cycle else [*seen, set()]
            seen[-1] |= {tuple(row[row != TOKENIZER.marks.pad].tolist()) for row in batch.shown}
        step += 1
    first, second = seen
    assert (first == second) == bool(copies)


def test_short_sequences_come_first(make: Callable[..., Masked]) -> None:
    task = make(warm_length=16, warm_share=0.9, steps=100)
    widths = [task.batch("train", step).shown.shape[1] for step in (0, 50, 89, 90, 99)]
    assert max(widths[:3]) <= 16 < min(widths[3:]) <= 32
    assert all(task.batch("train", step).shown.numel() <= 320 for step in range(80, 100))
    epochs = [task.epoch(step) for step in range(120)]
    assert epochs[0] == 0
    assert all(before < after for before, after in pairwise(epochs))
    with pytest.raises(ConfigError, match=r"task\.warm_length = 64 is more than data\.longest = 32; write a shorter"):
        make(warm_length=64)


def test_the_loss_is_the_sum_of_both(make: Callable[..., Masked]) -> None:
    task, model = make(), bert()
    batch = task.batch("train", 0)
    loss = task.loss(model, batch, None)
    hidden = model(batch.shown, batch.real, batch.segments)
    logits = model.masked.logits(hidden).flatten(0, 1)[batch.at]
    masked = nn.functional.cross_entropy(logits, batch.words)
    follows = nn.functional.cross_entropy(model.next(model.summary(hidden)), batch.random)
    weight = batch.usual * len(batch.random) / batch.tokens
    assert loss.count == batch.tokens
    torch.testing.assert_close(loss.total / loss.count, masked + weight * follows)
    torch.testing.assert_close(loss.parts["masked"] / loss.count, masked)
    torch.testing.assert_close(loss.total, loss.parts["masked"] + loss.parts["next"])


@pytest.mark.parametrize("copies", [1, 3])
def test_over_an_epoch_both_means_weigh_the_same(make: Callable[..., Masked], copies: int) -> None:
    task = make(copies=copies)
    batches = [task.batch("train", step) for step in range(1000) if task.epoch(step) < copies]
    chosen, sequences = sum(batch.tokens for batch in batches), sum(len(batch.ids) for batch in batches)
    assert batches[0].usual == pytest.approx(chosen / sequences)


def rows(batch: MaskedBatch, first: int, last: int) -> MaskedBatch:
    width = batch.shown.shape[1]
    ours = (batch.at >= first * width) & (batch.at < last * width)
    return replace(
        batch,
        **{name: getattr(batch, name)[first:last] for name in ("shown", "real", "segments", "random", "ids")},
        at=batch.at[ours] - first * width,
        words=batch.words[ours],
        tokens=int(ours.sum()),
    )


def test_four_micro_batches_have_the_gradients_of_one_batch(make: Callable[..., Masked]) -> None:
    """Though each has another number of chosen tokens to a sequence."""
    task, model = make(), bert().double()
    batch = task.batch("train", 1)
    parts = [rows(batch, first, last) for first, last in ((0, 1), (1, 4), (4, 5), (5, len(batch.ids)))]
    assert len({part.tokens / len(part.ids) for part in parts}) > 1
    gradients = []
    for pieces in ([batch], parts):
        model.zero_grad()
        count = 0
        for piece in pieces:
            loss = task.loss(model, piece, None)
            loss.total.backward()
            count += loss.count
        gradients.append([parameter.grad / count for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*gradients)


def test_padding_changes_nothing(make: Callable[..., Masked]) -> None:
    task, model = make(), bert().double()
    batch = task.batch("train", 0)
    width = batch.shown.shape[1]
    wider = replace(
        batch,
        shown=nn.functional.pad(batch.shown, (0, 9), value=TOKENIZER.marks.pad),
        real=nn.functional.pad(batch.real, (0, 9)),
        segments=nn.functional.pad(batch.segments, (0, 9)),
        at=batch.at + batch.at // width * 9,
    )
    torch.testing.assert_close(task.loss(model, wider, None).total, task.loss(model, batch, None).total)


def test_without_next_sentences_there_is_one_segment_and_one_loss(make: Callable[..., Masked]) -> None:
    task, model = make(next_sentence=False), bert()
    batch = task.batch("train", 0)
    assert not batch.segments.any()
    loss = task.loss(model, batch, None)
    assert set(loss.parts) == {"masked"}
    torch.testing.assert_close(loss.total, loss.parts["masked"])
    found = task.evaluate(model, "valid")
    assert set(found) == set(MEASURES) - {"next_accuracy"}
    assert found["loss"] == found["masked_loss"]


def test_evaluation_is_the_loss_over_all_batches(make: Callable[..., Masked], monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = make(), bert()
    found = task.evaluate(model, "valid")
    assert set(found) == set(MEASURES)
    assert all(isinstance(value, Measure) for value in found.values())
    how = (task.tokenizer, task.settings, task.longest, task.tokens)
    batches = list(in_order(task.held["valid"], *how))
    random = torch.cat([batch.random for batch in batches]).float().mean().item()
    blind = f"; the commoner answer alone gives {100 * max(random, 1 - random):.1f}"
    assert found["next_accuracy"].definition.endswith(blind)  # type: ignore[attr-defined]
    places = sorted(place for batch in batches for place in batch.ids)
    assert places == list(range(len(places)))
    sequences = layouts_of(task.held["valid"], task.settings, task.longest, 1, 0).lengths(0)
    assert len(places) == len(sequences)
    losses = [task.loss(model, batch, None) for batch in batches]
    masked = sum(float(loss.parts["masked"].detach()) for loss in losses) / sum(loss.count for loss in losses)
    follows = sum(float(loss.parts["next"]) for loss in losses) / sum(len(batch.ids) for batch in batches)
    assert found["masked_loss"] == pytest.approx(masked, rel=1e-5)
    assert found["loss"] == pytest.approx(masked + follows, rel=1e-5)
    assert found["perplexity"] == pytest.approx(torch.tensor(masked).exp().item(), rel=1e-4)
    monkeypatch.setattr("regard.tasks.masked.LOGITS", 1)  # a row at a time
    assert task.evaluate(model, "valid") == pytest.approx(found, rel=1e-5)
    assert task.evaluate(model, "test") == {}


def test_a_batch_can_be_learnt_by_heart(make: Callable[..., Masked]) -> None:
    task, model = make(), bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = task.loss(model, task.batch("train", 0), None)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    assert loss.parts["masked"] / loss.count < 0.5
    assert loss.parts["next"] / loss.count < 0.3


class Habits(nn.Module):
    """Guesses what the person before the mask always does, and else nothing in particular."""

    def __init__(self) -> None:
        super().__init__()
        self.masked = self
        self.table = nn.Parameter(torch.zeros(TOKENIZER.size, TOKENIZER.size))
        for name, deed in zip(NAMES, DEEDS, strict=True):
            self.table.data[TOKENIZER.encode(name), TOKENIZER.encode(deed)] = 10.0

    def forward(self, tokens: Tensor, real: Tensor, segments: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens.roll(1, 1), TOKENIZER.size).float()

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.table


def test_masks_are_filled_with_the_likeliest() -> None:
    first, second = fill(Habits(), TOKENIZER, ["anna<mask> .", "carl [MASK] slowly . bert <mask> ."], top=3)
    assert first.text == "anna walks."
    assert second.text == "carl reads slowly. bert sleeps."
    assert [guesses[0].piece for guesses in second.guesses] == ["reads", "sleeps"]
    assert {guess.text[-len(" bert sleeps.") :] for guess in second.guesses[0]} == {" bert sleeps."}
    best, *others = first.guesses[0]
    e = math.exp(10)
    assert best.probability == pytest.approx(e / (e + TOKENIZER.size - 1))
    assert [guess.probability for guess in others] == pytest.approx([1 / (e + TOKENIZER.size - 1)] * 2)


def test_filling_does_not_depend_on_the_company(make: Callable[..., Masked]) -> None:
    model = bert().double()
    texts = ["<mask>", "anna <mask> slowly .", "bert [MASK] [MASK] .", "dora <mask>"]
    together = fill(model, TOKENIZER, texts, top=4)
    for text, answer in zip(texts, together, strict=True):
        (alone,) = fill(model, TOKENIZER, [text], top=4, tokens=1)
        assert alone.source == text
        for one, other in zip(alone.guesses, answer.guesses, strict=True):
            assert [guess.text for guess in one] == [guess.text for guess in other]
            assert [g.probability for g in one] == pytest.approx([g.probability for g in other])


def test_marks_are_never_guessed() -> None:
    (answer,) = fill(bert(), TOKENIZER, ["<mask>"], top=100_000)
    pieces = {guess.piece for guess in answer.guesses[0]}
    assert not pieces & {"<pad>", "<bos>", "<eos>", "<unk>", "<mask>"}
    assert len(pieces) == TOKENIZER.size - 5
    assert min(guess.probability for guess in answer.guesses[0]) > 0


def test_what_cannot_be_filled_is_refused() -> None:
    with pytest.raises(DataError, match="input 2 has no mask; write <mask> where a word is to be guessed"):
        fill(bert(), TOKENIZER, ["<mask>", "anna walks"])
    with pytest.raises(DataError, match="input 1 has 5 tokens with its marks, but this model reads at most 4; shorten"):
        fill(bert(), TOKENIZER, ["anna <mask> ."], longest=4)
    bare = Tokenizer.train(["anna walks"], kind="word", size=20)
    with pytest.raises(ConfigError, match=r"this model's vocabulary has no mask; name a run .* task\.name = masked"):
        fill(bert(), bare, ["<mask>"])
