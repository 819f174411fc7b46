"""How a vocabulary is learnt: one function for each kind, from texts, a size and normalizers to a tokenizer.

The byte-level kinds (bpe, unigram) lose nothing: they spell in bytes what they have not seen. The others say <unk>.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import ConfigError

Kind: TypeAlias = Literal["bpe", "unigram", "wordpiece", "word", "char"]
Normal: TypeAlias = list[normalizers.Normalizer]
Inner: TypeAlias = tokenizers.Tokenizer

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPACED = decoders.WordPiece(prefix=" ", cleanup=False)  # no token begins with a space, so each but the first gets one


def bpe(texts: Iterable[str], size: int, normal: Normal) -> Inner:
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=BYTES, show_progress=False)
    inner = _bytewise(models.BPE(), size, normal)
    inner.train_from_iterator(texts, trainer)
    return inner


def unigram(texts: Iterable[str], size: int, normal: Normal) -> Inner:
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=BYTES,
        unk_token=SPECIAL[UNK],
        show_progress=False,
    )
    inner = _bytewise(models.Unigram(), size, normal)
    inner.train_from_iterator(texts, trainer)
    inner.model = models.Unigram(_settled(json.loads(inner.to_str())["model"]["vocab"]), UNK, byte_fallback=False)
    return inner


def _settled(vocabulary: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Freed of chance: threads add up in any order, and bytes never seen are ranked at random, 0.0001 apart."""
    learnt = vocabulary[len(SPECIAL) :]
    least = min(score for _, score in learnt) + 0.0001 * len(BYTES)
    scores = {piece: round(max(score, least), 6) for piece, score in learnt}
    return [*((name, 0.0) for name in SPECIAL), *sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))]


def _bytewise(model: models.Model, size: int, normal: Normal) -> Inner:
    """A space goes before every text, so that its first word is spelt as all others are."""
    _enough(size, len(SPECIAL) + len(BYTES) + 1)
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.Sequence([*normal, normalizers.Prepend(" ")])
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return inner


def wordpiece(texts: Iterable[str], size: int, normal: Normal) -> Inner:
    draft = _bert(models.WordPiece(unk_token=SPECIAL[UNK]), normal)
    words: Counter[str] = Counter()
    for text in texts:
        plain = draft.normalizer.normalize_str(text)
        words.update(word for word, _ in draft.pre_tokenizer.pre_tokenize_str(plain))
    # The trainer numbers the later letters of words at random and breaks ties by number; so they come numbered.
    later = sorted({f"##{letter}" for word in words for letter in word[1:]})
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIAL + later, show_progress=False)
    draft.train_from_iterator((" ".join([word] * count) for word, count in words.items()), trainer)
    _enough(size, draft.get_vocab_size())
    inner = _bert(models.WordPiece(draft.get_vocab(), unk_token=SPECIAL[UNK]), normal)
    inner.add_special_tokens(SPECIAL)
    return inner


def _bert(model: models.Model, normal: Normal) -> Inner:
    """Words and punctuation marks, as BERT has them."""
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.Sequence(normal)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    return inner


def word(texts: Iterable[str], size: int, normal: Normal, least: int = 1) -> Inner:
    return _listed(texts, size, least, normal, pre_tokenizers.WhitespaceSplit(), SPACED)


def char(texts: Iterable[str], size: int, normal: Normal, least: int = 1) -> Inner:
    letters = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    return _listed(texts, size, least, normal, letters, decoders.Fuse())


def _listed(
    texts: Iterable[str],
    size: int,
    least: int,
    normal: Normal,
    pre: pre_tokenizers.PreTokenizer,
    decoder: decoders.Decoder,
) -> Inner:
    """The most frequent pieces, as they are. A text that has "<unk>" for its rare words gives it no second entry."""

    def made(model: models.Model) -> Inner:
        inner = tokenizers.Tokenizer(model)
        inner.normalizer, inner.pre_tokenizer, inner.decoder = normalizers.Sequence(normal), pre, decoder
        return inner

    draft, most = made(models.WordLevel(unk_token=SPECIAL[UNK])), size + len(SPECIAL)
    trainer = trainers.WordLevelTrainer(
        vocab_size=most, min_frequency=least, special_tokens=SPECIAL, show_progress=False
    )
    draft.train_from_iterator(texts, trainer)
    learnt = sorted(draft.get_vocab().items(), key=lambda entry: entry[1])
    names = [*SPECIAL, *(name for name, _ in learnt if name not in SPECIAL)][:size]
    inner = made(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=SPECIAL[UNK]))
    inner.add_special_tokens(SPECIAL)
    return inner


def _enough(size: int, needed: int) -> None:
    if size < needed:
        raise ConfigError(f"tokens.size = {size} is too small: the letters alone need tokens.size = {needed} or more")


TRAINERS: dict[Kind, Callable[..., Inner]] = {
    "bpe": bpe,
    "unigram": unigram,
    "wordpiece": wordpiece,
    "word": word,
    "char": char,
}
