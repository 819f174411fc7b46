"""Vocabularies of every family, in the files that they are found in."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from regard.data.tokenizer import Tokenizer
from regard.interop import spm

TEXTS = [
    "Two young, white males are outside near many bushes.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz. Straße, Café, naïve!",
    "小さな家 に 猫 が いる。 你好，世界！",
    "THE QUICK brown foxes don't jump over 1,234 lazy dogs' backs 😀",
] * 4


def words(folder: Path, **settings: Any) -> None:
    """WordPiece, one token a line."""
    trained = Tokenizer.train(TEXTS, kind="wordpiece", size=400)
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    listed = [*special, *(name for _, name in sorted(trained.words().items()) if not name.startswith("<"))]
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def merged(folder: Path, special: list[str], *, last: bool = False, suffix: str = "", **settings: Any) -> None:
    """Byte BPE in two files, or GPT-1's BPE of letters."""
    bytewise, ends = not suffix, {"end_of_word_suffix": suffix} if suffix else {}
    inner = tokenizers.Tokenizer(models.BPE(**ends))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(False) if bytewise else pre_tokenizers.BertPreTokenizer()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if bytewise else []
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=letters, show_progress=False, **ends
    )
    inner.train_from_iterator([one if bytewise else one.lower() for one in TEXTS], trainer)
    inner.model.save(str(folder))
    if last:  # GPT-2 numbers its one mark behind all others
        about = json.loads((folder / "vocab.json").read_text("utf-8"))
        moved = {name: number - 1 for name, number in about.items() if name != special[0]} | {
            special[0]: len(about) - 1
        }
        (folder / "vocab.json").write_text(json.dumps(moved), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def sentencepieces(texts: list[str], size: int, **how: Any) -> bytes:
    library = pytest.importorskip("sentencepiece")
    out = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=out, vocab_size=size, minloglevel=2, hard_vocab_limit=False, **how
    )
    return out.getvalue()


def marian(folder: Path) -> None:
    """Two models, and one list of most of their pieces, in an order of its own."""
    sides = [sentencepieces(TEXTS[::2], 120), sentencepieces(TEXTS[1::2], 140)]
    names = sorted({piece.text for side in sides for piece in spm.decode(side).pieces if piece.kind == spm.NORMAL})
    dropped = set(random.Random(0).sample(names, 9))
    kept = ["</s>", "<unk>", *(name for name in names if name not in dropped), ">>deu<<", "<pad>"]
    for name, side in zip(("source.spm", "target.spm"), sides, strict=True):
        (folder / name).write_bytes(side)
    (folder / "vocab.json").write_text(json.dumps({name: number for number, name in enumerate(kept)}), "utf-8")


MAKE: dict[str, Callable[[Path], None]] = {
    "bert": lambda folder: words(folder, do_lower_case=False),
    "distilbert": words,
    "roberta": lambda folder: merged(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]),
    "bart": lambda folder: merged(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], add_prefix_space=True),
    "gpt2": lambda folder: merged(folder, ["<|endoftext|>"], last=True, unk_token="<|endoftext|>"),
    "openai-gpt": lambda folder: merged(folder, ["<unk>"], suffix="</w>"),
    "marian": marian,
}
