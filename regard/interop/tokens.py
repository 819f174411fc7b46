"""Vocabularies of Hugging Face folders, in and out, with the same numbers for the same texts.

    in    tokenizer.json; else WordPiece's vocab.txt, byte BPE's vocab.json and merges.txt (GPT-2, RoBERTa, BART; GPT-1
          has its own), Marian's source.spm, target.spm and vocab.json, or spiece.model
    out   tokenizer.json and tokenizer_config.json, and the family's older files where the vocabulary is of their kind

Which tokens are marks is said by the folder (tokenizer_config.json, special_tokens_map.json, config.json), else known
of the family; nothing else of those files is looked at. A mark that a text spells is no mark, while transformers takes
"[SEP]" in a text for the mark unless it is asked to split special tokens.

Of a SentencePiece model with the usual table of characters, chains of several accents on one letter may be cut
otherwise than by the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from regard.data.suspicion import MOST_TOKENS, Unfit, check, failures, parse, read_bytes
from regard.data.tokenizer import Marks, Tokenizer, Tokenizers
from regard.errors import CheckpointError, ConfigError
from regard.interop import spm
from regard.interop.files import GENERATION, MEGABYTE, inside, read_json, shown

TOKENIZER, SETTINGS, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
Names = dict[str, str]
Inner = tokenizers.Tokenizer


@dataclass(frozen=True)
class Kind:
    """How a family frames its texts. `names` are what its marks are called where the folder does not say."""

    names: Mapping[str, str]
    reads: bool = False
    """begin A end (between B end)"""
    rewrites: bool = False
    """before A end, begin opening B end"""
    doubled: bool = False
    """Whether a second end stands between two texts."""
    segments: bool = False
    """Whether the second text is told apart by a number."""


BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
ROBERTA = {"bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
KINDS = {
    "bert": Kind(BERT, reads=True, segments=True),
    "distilbert": Kind(BERT, reads=True),
    "roberta": Kind(ROBERTA, reads=True, doubled=True),
    "bart": Kind(ROBERTA, rewrites=True, doubled=True),
    "marian": Kind({"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, rewrites=True),
    "gpt2": Kind({"bos": "<|endoftext|>", "eos": "<|endoftext|>"}),
    "openai-gpt": Kind({"unk": "<unk>"}),
}


# ---- in


def read_tokenizers(folder: Path, config: Mapping[str, Any]) -> Tokenizers | None:
    """The vocabularies of a folder, or None where it has none. `config` is its config.json."""
    kind = KINDS[str(config["model_type"])]
    said = _settings(folder)
    names = {**kind.names, **_names(folder, said)}
    if (folder / TOKENIZER).exists():
        one = _read(folder, TOKENIZER, parse)
    elif (folder / "source.spm").exists():
        return _marian(folder, config, names)
    elif (folder / "spiece.model").exists():
        one = _read(folder, "spiece.model", lambda data: _pieces(spm.decode(data), None, names))
    elif (folder / "vocab.txt").exists():
        one = _read(folder, "vocab.txt", lambda data: _wordpiece(_lines(data), said, names))
    elif (folder / "merges.txt").exists():
        vocabulary, gpt1 = _vocabulary(folder, "vocab.json"), config["model_type"] == "openai-gpt"
        build = _first_gpt if gpt1 else _bytewise
        one = _read(folder, "merges.txt", lambda data: build(vocabulary, _merges(data), said, names))
    else:
        return None
    both = _finished(folder, one, config, names)
    return Tokenizers(both, both)


def _marian(folder: Path, config: Mapping[str, Any], names: Names) -> Tokenizers:
    numbers = _vocabulary(folder, "vocab.json")

    def side(name: str, numbers: Mapping[str, int], size: str) -> Tokenizer:
        inner = _read(folder, name, lambda data: _pieces(spm.decode(data), numbers, names))
        rows = config.get(size, config.get("vocab_size", max(numbers.values()) + 1))
        return _finished(folder, inner, {**config, "vocab_size": rows}, names)

    target = _vocabulary(folder, "target_vocab.json") if (folder / "target_vocab.json").exists() else numbers
    return Tokenizers(side("source.spm", numbers, "vocab_size"), side("target.spm", target, "decoder_vocab_size"))


def _finished(folder: Path, inner: Inner, config: Mapping[str, Any], names: Names) -> Tokenizer:
    """With its marks, and as many rows as the model has."""
    count = max(inner.get_vocab().values()) + 1
    size = config.get("vocab_size", count)
    if type(size) is not int or not 0 < size <= MOST_TOKENS:
        raise CheckpointError(f"{folder}: vocab_size is {shown(size)}, where a number up to {MOST_TOKENS:,} was wanted")
    marks = _marks(folder, inner, {**config, "vocab_size": size}, names)
    if marks.unknown is None and count > size:
        problem = f"the vocabulary is numbered up to {count - 1}, but the model has {size} words"
        raise CheckpointError(f"{folder}: {problem}; the two belong to different models")
    return Tokenizer(inner, marks, size)


def _marks(folder: Path, inner: Inner, config: Mapping[str, Any], names: Names) -> Marks:
    """A mark for which the model has no row is none."""
    kind = KINDS[str(config["model_type"])]

    def find(*wanted: str) -> int | None:
        """By its name, else by its number in config.json."""
        for mark in wanted:
            for number in (inner.token_to_id(names.get(mark, "")), config.get(f"{mark}_token_id")):
                if (found := _token(inner, number, config)) is not None:
                    return found
        return None

    unknown, pad = find("unk"), find("pad")
    end = find("sep", "eos") if kind.reads else find("eos")
    end = unknown if end is None else end
    if end is None:
        raise CheckpointError(f"{folder}: no token of the vocabulary ends a text; name one as eos_token in {SETTINGS}")
    if unknown == end and isinstance(inner.model, models.BPE) and not inner.model.unk_token:
        unknown = None  # it spells everything
    begin = find("cls", "bos") if kind.reads else find("bos")
    marks = Marks(
        pad=end if pad is None else pad,
        begin=end if begin is None else begin,
        end=end,
        unknown=unknown,
        mask=find("mask"),
        between=(end,) if kind.doubled else (),
    )
    return _of_pairs(marks, inner, _generation(folder, config), begin) if kind.rewrites else marks


def _of_pairs(marks: Marks, inner: Inner, config: Mapping[str, Any], first: int | None) -> Marks:
    """What a decoder starts with, and must say first where the folder says so; BART's first mark is before sources."""
    start, forced = (
        _token(inner, config.get(key), config) for key in ("decoder_start_token_id", "forced_bos_token_id")
    )
    opening = () if forced is None else (forced,)
    if config["model_type"] != "bart" or first is None:
        return replace(marks, begin=marks.pad if start is None else start, opening=opening)
    return replace(marks, begin=marks.end if start is None else start, before=(first,), opening=opening)


def _token(inner: Inner, number: Any, config: Mapping[str, Any]) -> int | None:
    """A number that somebody gave, if the vocabulary has a token for it and the model a row."""
    known = type(number) is int and 0 <= number < config["vocab_size"] and inner.id_to_token(number) is not None
    return number if known else None


# ---- the files


def _settings(folder: Path) -> dict[str, Any]:
    return read_json(inside(folder, SETTINGS), 16 * MEGABYTE) if (folder / SETTINGS).exists() else {}


def _generation(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json, or what newer folders say in a file of its own."""
    told = read_json(inside(folder, GENERATION)) if (folder / GENERATION).exists() else {}
    return {**config, **{key: told[key] for key in ("decoder_start_token_id", "forced_bos_token_id") if key in told}}


def _names(folder: Path, said: Mapping[str, Any]) -> Names:
    """What the marks are called: each a name, or a table that has one."""
    special = read_json(inside(folder, SPECIAL)) if (folder / SPECIAL).exists() else {}
    found: Names = {}
    for mark in ("unk", "sep", "pad", "cls", "mask", "bos", "eos"):
        for table in (said, special):
            given = table.get(f"{mark}_token")
            name = given.get("content") if isinstance(given, dict) else given
            if isinstance(name, str) and name:
                found.setdefault(mark, name)
    return found


def _read(folder: Path, name: str, build: Any) -> Inner:
    path = inside(folder, name)
    with _refusals(path):
        data = read_bytes(path)
        with failures():
            inner: Inner = build(data)
            _add(folder, inner)
            check(inner)
    return inner


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except Unfit as error:
        raise CheckpointError(f"{path}: cannot be read as a vocabulary ({error}); fetch it again") from None


def _vocabulary(folder: Path, name: str) -> dict[str, int]:
    """Tokens and their numbers."""
    path = inside(folder, name)
    found = read_json(path, 16 * MEGABYTE)
    with _refusals(path):
        if not 0 < len(found) <= MOST_TOKENS:
            raise Unfit(f"it has {len(found):,} tokens")
        if not all(type(number) is int and 0 <= number < MOST_TOKENS for number in found.values()):
            raise Unfit(f"its tokens are not numbered from 0 to less than {MOST_TOKENS:,}")
    return found


def _add(folder: Path, inner: Inner) -> None:
    """Tokens that were added to a vocabulary afterwards, in an old folder."""
    if (folder / "added_tokens.json").exists() and not (folder / TOKENIZER).exists():
        for name, number in sorted(_vocabulary(folder, "added_tokens.json").items(), key=lambda entry: entry[1]):
            if inner.token_to_id(name) is None:
                inner.add_tokens([tokenizers.AddedToken(name, normalized=False)])
            if inner.token_to_id(name) != number:
                raise Unfit(f"added_tokens.json gives {shown(name)} the number {number}, which is not the next one")


def _lines(data: bytes) -> list[str]:
    if data.count(b"\n") + data.count(b"\r") > MOST_TOKENS:
        raise Unfit(f"it has more than {MOST_TOKENS:,} lines")
    text = data.decode("utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _merges(data: bytes) -> list[tuple[str, str]]:
    pairs = [tuple(line.split(" ")) for line in _lines(data) if line and not line.startswith("#version")]
    if not all(len(pair) == 2 for pair in pairs):
        raise Unfit("a line does not name two pieces")
    return pairs  # type: ignore[return-value]


# ---- each kind


def _wordpiece(lines: list[str], said: Mapping[str, Any], names: Names) -> Inner:
    """Devlin et al. 2019: a token a line, numbered as they stand."""
    vocabulary = {line: number for number, line in enumerate(lines[:-1] if not lines[-1] else lines)}
    if names["unk"] not in vocabulary:
        raise Unfit(f"its unknown word {shown(names['unk'])} is none of its tokens")
    inner = Inner(models.WordPiece(vocabulary, unk_token=names["unk"], max_input_chars_per_word=100))
    accents = said.get("strip_accents")
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=said.get("tokenize_chinese_chars", True) is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=said.get("do_lower_case", True) is not False,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return _marked(inner, names)


def _bytewise(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], said: Mapping[str, Any], names: Names
) -> Inner:
    """Radford et al. 2019: pairs of bytes, of which each has a letter."""
    inner = Inner(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=said.get("add_prefix_space") is True)
    inner.decoder = decoders.ByteLevel()
    return _marked(inner, names)


def _first_gpt(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], said: Mapping[str, Any], names: Names
) -> Inner:
    """Radford et al. 2018: lower-case words and signs as BERT has them, the last letter of each with its sign."""
    inner = Inner(models.BPE(vocabulary, merges, unk_token=names["unk"], end_of_word_suffix="</w>"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.BPEDecoder(suffix="</w>")
    return _marked(inner, names)


def _pieces(model: spm.Model, numbers: Mapping[str, int] | None, names: Names) -> Inner:
    codes = [name for name in numbers or () if spm.is_code(name)]
    about = spm.to_json(model, numbers, {*names.values()}.intersection(numbers or ()), codes)
    return parse(json.dumps(about).encode())


def _marked(inner: Inner, names: Names) -> Inner:
    """Whatever marks it has are no text."""
    inner.add_special_tokens([name for name in names.values() if inner.token_to_id(name) is not None])
    return inner


# ---- out


def write_tokenizers(given: Tokenizers, folder: Path, family: str) -> None:
    """For a model of this family; `transformers.AutoTokenizer` reads them from the folder, frames included.

    One file holds one vocabulary. Two that cut texts otherwise go as a Marian's SentencePiece models, or not at all.
    """
    kind, one = KINDS[family], given.source
    settings, sides = _config(one, kind), _both_sides(given) if family == "marian" else {}
    if not sides and given.source is not given.target and given.source.to_str() != given.target.to_str():
        what = "tokens: each side has a vocabulary of its own, and a Hugging Face folder has room for one"
        raise ConfigError(
            f"{what} unless both are unigram models of SentencePiece; "
            "write tokens.joint = true and train again, or export to onnx or ctranslate2"
        )
    if sides:
        for name, data in sides.items():
            (folder / name).write_bytes(data)
        settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not given.joint}
    else:
        inner = Inner.from_str(one.to_str())
        inner.post_processor = _frame(one, kind)
        (folder / TOKENIZER).write_text(inner.to_str(pretty=True), "utf-8")
        if (family in ("bert", "distilbert") and isinstance(inner.model, models.WordPiece)) or (
            family in ("gpt2", "openai-gpt", "roberta", "bart") and isinstance(inner.model, models.BPE)
        ):
            inner.model.save(str(folder))
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _config(one: Tokenizer, kind: Kind) -> dict[str, Any]:
    marks, name = one.marks, one.inner.id_to_token
    first = marks.before[0] if marks.before else marks.begin
    numbers = {"pad": marks.pad, "eos": marks.end, "unk": marks.unknown, "mask": marks.mask}
    if kind.reads:
        numbers |= {"cls": marks.begin, "sep": marks.end, "bos": marks.begin}
    elif marks.before or not kind.rewrites:
        numbers |= {"bos": first}
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if kind.segments else ["input_ids", "attention_mask"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **_older(one.inner),
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        **{f"{mark}_token": name(number) for mark, number in numbers.items() if number is not None},
    }


def _older(inner: Inner) -> dict[str, Any]:
    """What the family's older files leave to the settings."""
    normal, pre = inner.normalizer, inner.pre_tokenizer
    if isinstance(normal, normalizers.BertNormalizer) and isinstance(inner.model, models.WordPiece):
        return {
            "do_lower_case": normal.lowercase,
            "strip_accents": normal.strip_accents,
            "tokenize_chinese_chars": normal.handle_chinese_chars,
        }
    return {"add_prefix_space": pre.add_prefix_space} if isinstance(pre, pre_tokenizers.ByteLevel) else {}


def _frame(one: Tokenizer, kind: Kind) -> processors.PostProcessor:
    """The marks around a text, and around two."""
    marks, name = one.marks, one.inner.id_to_token
    if not kind.reads and not kind.rewrites:
        return processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    before = (marks.begin,) if kind.reads else marks.before
    second = int(kind.segments)
    ends = [f"{name(marks.end)}:0", *(f"{name(mark)}:0" for mark in marks.between)]
    single = [*(f"{name(mark)}:0" for mark in before), "$A:0"]
    pair = [*single, *ends, f"$B:{second}", f"{name(marks.end)}:{second}"]
    special = [(str(name(mark)), mark) for mark in sorted({*before, marks.end, *marks.between})]
    return processors.TemplateProcessing(single=[*single, ends[0]], pair=pair, special_tokens=special)


def _both_sides(given: Tokenizers) -> dict[str, bytes]:
    """Marian's own files; nothing where the vocabularies are no SentencePiece models."""
    found = {}
    for name, side in (("source.spm", given.source), ("target.spm", given.target)):
        if (model := spm.from_json(json.loads(side.to_str()))) is None:
            return {}
        found[name] = spm.encode(model)
    found["vocab.json"] = _numbers(given.source)
    return found if given.joint else {**found, "target_vocab.json": _numbers(given.target)}


def _numbers(side: Tokenizer) -> bytes:
    return json.dumps({name: number for number, name in sorted(side.words().items())}, ensure_ascii=False).encode()
