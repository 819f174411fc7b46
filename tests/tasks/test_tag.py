"""Every word gets a tag, however its sentence is read; and what is learnt is what is measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.conll import Sentence, labels
from regard.data.text import BadLines
from regard.data.tokenizer import Tokenizer
from regard.data.words import NONE, Words
from regard.metrics.entities import entity_scores
from regard.models.bert import Bert, Config
from regard.tasks.tag import Named, Tag, TagBatch, measure, split, tag, tell

PEOPLE, PLACES = ["Ada Byron", "Bob", "Cleo van Dyk"], ["Rome", "New York", "Ulm"]
IOB = SimpleNamespace(scheme="iob2")


def sentences(count: int, seed: int = 0) -> list[Sentence]:
    chance = np.random.default_rng(seed)
    found = []
    for number in range(count):
        words, tags = [], []
        for kind, names in (("PER", PEOPLE), ("LOC", PLACES)):
            name = chance.choice(names).split()
            words += [*name, "saw" if kind == "PER" else "."]
            tags += [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1), "O"]
        found.append(Sentence(10 * number + 1, tuple(words), tuple(tags)))
    return found


TOKENIZER = Tokenizer.train([" ".join(one.words) for one in sentences(40)], kind="wordpiece", size=60)
LABELS = labels(sentences(40), "iob2")


def bert() -> Bert:
    size = {"dim": 32, "heads": 2, "layers": 1, "hidden": 64, "context": 32, "dropout": 0.0, "attention_dropout": 0.0}
    return Bert(Config(vocab=TOKENIZER.size, head="words", labels=len(LABELS), **size))


def store(folder: Path, some: list[Sentence], longest: int = 32) -> Words:
    return Words.build(folder, some, TOKENIZER, LABELS, longest=longest, bad=BadLines(), on_bad="refuse")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Tag:
    folder = tmp_path_factory.mktemp("tag")
    held = {"valid": store(folder / "valid", sentences(12, seed=1), longest=12)}
    return Tag(TOKENIZER, store(folder / "train", sentences(30)), held, tokens=128, seed=0, settings=IOB)


@pytest.fixture(scope="module")
def model(task: Tag) -> Bert:
    torch.manual_seed(0)
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(60):
        loss = task.loss(model, task.batch("train", step), None)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.inference_mode()
def test_the_loss_asks_the_first_token_of_each_word_alone(task: Tag) -> None:
    model, batch = bert().eval(), task.batch("train", 0)
    total, count = 0.0, 0
    for words, real, wanted in zip(batch.words, batch.real, batch.labels, strict=True):
        told = model.labels(model(words[real][None], None, None))[0].log_softmax(-1)
        for place in range(int(real.sum())):
            if wanted[place] != NONE:
                total, count = total - float(told[place, wanted[place]]), count + 1
    loss = task.loss(model, batch, None)
    assert float(loss.total) == pytest.approx(total, rel=1e-5)
    assert loss.count == batch.tokens == count
    assert torch.equal(batch.words, task.batch("train", 0).words)
    assert {line % 10 for line in batch.ids} == {1}
    with pytest.raises(ValueError, match="only training draws batches by step; 'valid' is read in order"):
        task.batch("valid", 0)


def test_padding_does_not_change_what_is_told(task: Tag) -> None:
    model, held = bert().eval(), task.held["valid"]
    some = [held[place] for place in range(len(held))]
    alone = torch.cat([tell(model, TagBatch.of([row], TOKENIZER.marks)) for row in some])
    torch.testing.assert_close(tell(model, TagBatch.of(some, TOKENIZER.marks)), alone, atol=1e-5, rtol=1e-5)


def test_measures_are_those_of_the_tags_that_are_told(task: Tag, model: Bert) -> None:
    """Sentences of the held-out split are read in pieces; those that are asked, too."""
    found = task.evaluate(model, "valid")
    asked = sentences(12, seed=1)
    told = tag(model, TOKENIZER, [one.words for one in asked], LABELS, IOB, longest=12)
    assert [len(one.tags) for one in told] == [len(one.words) for one in asked]
    scores = entity_scores([one.tags for one in told], [one.tags for one in asked])
    assert {name: found[name] for name in scores} == scores
    assert found["f1"] > 80
    small = measure(model, task.held["valid"], TOKENIZER.marks, IOB, tokens=12)
    assert small == pytest.approx(found, rel=1e-4)
    plain = measure(model, task.held["valid"], TOKENIZER.marks, SimpleNamespace(scheme="plain"))
    assert plain == pytest.approx({name: found[name] for name in ("loss", "accuracy")}, rel=1e-4)
    assert task.evaluate(model, "test") == {}
    assert task.epoch(len(task.batches)) == 1


def test_entities_point_into_the_text(task: Tag, model: Bert) -> None:
    texts = ["Ada Byron saw  New York.", "", "Bob saw Ulm ."]
    told = tag(model, TOKENIZER, [*texts, ["Bob", "saw", "Ulm", "."]], LABELS, IOB, longest=32)
    assert told[1].words == told[1].tags == told[1].entities == ()
    assert told[0].entities == (Named("Ada Byron", "PER", 0, 9), Named("New York", "LOC", 15, 23))
    assert told[2].entities == told[3].entities
    for text, one in zip(texts, told, strict=False):
        assert all(text[name.start : name.end] == name.text for name in one.entities)
    unnamed = tag(model, TOKENIZER, texts[:1], LABELS, SimpleNamespace(scheme="plain"), longest=32)
    assert unnamed[0].tags == told[0].tags
    assert unnamed[0].entities == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.N. met.", "The|U.N.|met|."),
        ("Peter's all-rounder (3.5 %)", "Peter|'s|all-rounder|(|3.5|%|)"),
        ("on 1996-08-22, AT&T", "on|1996-08-22|,|AT&T"),
        ("Éva 東京 e\u0301té", "Éva|東京|e\u0301té"),
        ("  ", ""),
    ],
)
def test_running_text_is_split_into_words_and_signs(text: str, words: str) -> None:
    assert "|".join(text[start:end] for start, end in split(text)) == words


def test_every_letter_belongs_to_one_word() -> None:
    text: Any = "“Well,” said A. B. Smith-Jones: 1,000 €... don't @home 😀"
    spans = split(text)
    covered = [place for start, end in spans for place in range(start, end)]
    assert covered == [place for place, letter in enumerate(text) if not letter.isspace()]
