"""Folders of every family that are whole, and what somebody may have done to them."""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from regard.interop import spm
from regard.interop.tokens import read_tokenizers, write_tokenizers
from regard.weights import encode, load_weights

Change = Callable[[Path, random.Random], object]

ARCHITECTURES = {
    "bert": ("BertForMaskedLM", "BertForQuestionAnswering", "BertModel"),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertForTokenClassification"),
    "roberta": ("RobertaForMaskedLM", "RobertaForSequenceClassification"),
    "bart": ("BartForConditionalGeneration",),
    "gpt2": ("GPT2LMHeadModel",),
    "openai-gpt": ("OpenAIGPTLMHeadModel",),
    "marian": ("MarianMTModel",),
}
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
SETTINGS, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OLD = ("vocab.txt", "vocab.json", "merges.txt", "source.spm", "target.spm", "target_vocab.json", "spiece.model")


# ---- whole folders


def whole(family: str, number: int, folder: Path) -> Path:
    """One that nothing is wrong with: of one file or of shards, with an old vocabulary or with tokenizer.json."""
    from interop.foreign import speak  # here, so that a process that only asks starts without transformers

    architectures = ARCHITECTURES[family]
    speak(architectures[number % len(architectures)], folder, number)
    if number % 2:
        _shard(folder)
    if number % 4 > 1:
        held = read_tokenizers(folder, read(folder, CONFIG))
        assert held is not None
        for name in (*OLD, SETTINGS):
            (folder / name).unlink(missing_ok=True)
        write_tokenizers(held, folder, family)
    return folder


def _shard(folder: Path) -> None:
    tensors = load_weights(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    listed = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(tensors)}
    for shard in set(listed.values()):
        (folder / shard).write_bytes(encode({name: tensors[name] for name in tensors if listed[name] == shard}))
    put(folder, INDEX, {"metadata": {"total_size": 1}, "weight_map": listed})


def read(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def put(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())


# ---- bytes

FOREIGN = (
    b"", b"\0" * 4096, b"\x7fELF\2\1\1" + b"\0" * 57, b"\x89PNG\r\n\x1a\n" + b"\0" * 99, b"PK\3\4" + b"\0" * 99,
    b"\x1f\x8b\x08" + b"\0" * 99, b"<!DOCTYPE html><html><body>404</body></html>", b"null", b"[]", b"{}", b"0", b'"',
    b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", b"cos\nsystem\n(S'touch owned'\ntR.",
    b"\x80\x04\x95\x0f\0\0\0\0\0\0\0\x8c\x05posix\x94.", b"\xef\xbb\xbf{}", '{"ü": 1}'.encode("utf-16"),
    b"GGUF\3\0\0\0", b"\xff" * 64, b"\n" * 1000,
)  # fmt: skip


def damaged(folder: Path, dice: random.Random) -> None:
    """Bytes of any file: cut off, changed, put in, appended, or swapped for those of another."""
    path = _any_file(folder, dice)
    data = bytearray(path.read_bytes()) or bytearray(b"\0")
    at = dice.randrange(min(len(data), dice.choice((100, 3000, 10**9))))
    match dice.randrange(7):
        case 0:
            del data[at:]
        case 1:
            data[at] = dice.randrange(256)
        case 2:
            data[at:at] = dice.randbytes(dice.randint(1, 40))
        case 3:
            data += dice.randbytes(dice.randint(1, 99))
        case 4:
            del data[at : at + dice.randint(1, 99)]
        case 5:
            data = bytearray(dice.choice(FOREIGN))
        case _:
            data = bytearray(_any_file(folder, dice).read_bytes())
    path.write_bytes(bytes(data))


def _any_file(folder: Path, dice: random.Random) -> Path:
    return dice.choice(sorted(path for path in folder.iterdir() if path.is_file()))


# ---- headers

ODD = (
    None, -1, 0, 1, 2**31, 2**48, 2**63, 10**29, 10**400, 1.5, 1e300, True, "", "x", "7", [], {}, [[]], [1], {"a": 1},
    "\0", "../x", "\ud800",
)  # fmt: skip
NAMES = (
    "", "\0", "../../x", "/etc/passwd", "a" * 5000, "\ud800", "__metadata__", "a\nb", "\x1b[31m", "weight", "ü", "';",
)  # fmt: skip
SHAPES = ([2**62, 4], [0], [-1], [1] * 60, *ODD)
PLACES = ([], [0], [0, 0, 0], "ab", *ODD)
TYPES = ("F64", "F16", "I8", "BOOL", "F8_E4M3", "f32", "F4", *ODD)
TOLD = ([], "x", {"format": 1}, {"a": {"b": "c"}}, {"x": "y" * 10**6})


def lying(folder: Path, dice: random.Random) -> None:
    """One thing in a header: a place, a shape, a type or a name."""
    path = _weights(folder, dice)
    header, data = header_of(path)
    names = [name for name in header if name != "__metadata__"]
    name, other = dice.choice(names), dice.choice(names)
    said = header[name]
    match dice.randrange(12):
        case 0:
            said["data_offsets"] = [place + dice.choice((-8, -4, 4, 8, 10**12)) for place in said["data_offsets"]]
        case 1:
            said["data_offsets"] = dice.choice((said["data_offsets"][::-1], dice.choice(PLACES)))
        case 2:
            said["data_offsets"][dice.randrange(2)] = dice.choice(ODD)
        case 3:
            shape = said["shape"]
            said["shape"] = dice.choice(([*shape, 2], shape[1:], shape[::-1], dice.choice(SHAPES)))
        case 4:
            said["dtype"] = dice.choice(TYPES)
        case 5:
            header[dice.choice(NAMES)] = header.pop(name)
        case 6:
            del header[name]
        case 7:
            header[dice.choice(NAMES)] = dict(said)
        case 8:
            header["__metadata__"] = dice.choice(TOLD)
        case 9:
            header[name] = dice.choice(ODD)
        case 10:
            said[dice.choice(("extra", "shape ", "device"))] = dice.choice(ODD)
        case _:
            header[name], header[other] = header[other], header[name]
    rewrite(path, header, data)


def lying_bytes(folder: Path, dice: random.Random) -> None:
    """A header that no honest program would write."""
    path = _weights(folder, dice)
    header, data = header_of(path)
    text = json.dumps(header).encode()
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    match dice.randrange(7):
        case 0:
            lengths = (0, 1, 2, len(text) - 1, len(text) + 1, 2**31, 2**63, 2**64 - 1)
            path.write_bytes(struct.pack("<Q", dice.choice(lengths)) + text + data)
        case 1:
            rewrite(path, b"{" + text[1:-1] + b"," + text[1:], data)  # each name twice
        case 2:
            texts = (b"[" * 10**5, b'{"a":' * 10**5, b"{" * 9, b"", b" " * 99, b"NaN", b'{"a": NaN}')
            rewrite(path, dice.choice(texts), data)
        case 3:
            rewrite(path, {f"{i}": nothing for i in range(60_000)}, b"")
        case 4:
            rewrite(path, text.replace(b"F32", b"F32\\u0000", 1), data)
        case 5:
            rewrite(path, {"a": {"dtype": "F32", "shape": [2**30], "data_offsets": [0, 2**32]}}, b"")
        case _:
            rewrite(path, b" " * 11_000_000 + text, data)


def sparse(folder: Path, dice: random.Random) -> None:
    """More than any machine has, on a disk that never wrote it."""
    path, rows = folder / WEIGHTS, 2**32
    name = dice.choice(("model.encoder.embed_positions.weight", "transformer.wte.weight"))
    rewrite(path, {name: {"dtype": "F32", "shape": [rows, 8], "data_offsets": [0, rows * 32]}}, b"")
    with suppress(OSError):
        os.truncate(path, path.stat().st_size + rows * 32)


def no_numbers(folder: Path, dice: random.Random) -> None:
    """NaN, infinity, or what becomes it."""
    path = _weights(folder, dice)
    header, data = header_of(path)
    begin, end = dice.choice([said["data_offsets"] for name, said in header.items() if name != "__metadata__"])
    bad = struct.pack("<f", dice.choice((float("nan"), float("inf"), -float("inf"), 3e38)))
    rewrite(path, header, data[:begin] + bad * ((end - begin) // 4) + data[end:])
    if dice.random() < 0.5:
        put(folder, GENERATION, {"do_sample": True, "num_beams": 1})


def _weights(folder: Path, dice: random.Random) -> Path:
    return dice.choice(sorted(folder.glob("*.safetensors")))


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path: Path, header: Any, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# ---- configurations

LAYERS = ("n_layer", "n_layers", "num_hidden_layers", "encoder_layers", "decoder_layers")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
HIDDEN = ("intermediate_size", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim")
LENGTHS = ("max_position_embeddings", "n_positions")
VOCABULARIES = ("vocab_size", "decoder_vocab_size")
KEYS = (
    *LAYERS, *WIDTHS, *HIDDEN, *LENGTHS, *VOCABULARIES, "num_attention_heads", "n_head", "n_heads", "type_vocab_size",
    "encoder_attention_heads", "decoder_attention_heads", "layer_norm_eps", "layer_norm_epsilon", "dropout",
    "hidden_dropout_prob", "pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id", "model_type",
    "forced_bos_token_id", "num_labels", "id2label", "label2id", "problem_type", "architectures", "is_decoder",
    "tie_word_embeddings", "scale_embedding", "share_encoder_decoder_embeddings", "hidden_act", "activation", "afn",
    "activation_function", "position_embedding_type", "auto_map", "pruned_heads", "max_length", "normalize_before",
    "static_position_embeddings", "extra_pos_embeddings",
)  # fmt: skip
VALUES = (
    *ODD, 3, 7, 1024, 65_536, 2**20, 12.0, -0.0, "gelu", "swish", "quick_gelu", "GELU", "../../evil", "12", ["../evil"],
    "x" * 10**5, ["a"] * 1000, [["x" * 10**5]], {"0": "a", "2": "b"}, {"0": "a", "1": "a"}, {"-1": "a"}, {"0": [1]},
    {"0": {"a": []}}, {"0": "a\nb", "1": "\x1b[31m"}, {"AutoModel": "evil.Evil"}, [None],
)  # fmt: skip
SEARCH = (
    "num_beams", "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "do_sample",
    "temperature", "top_k", "top_p", "min_p", "num_return_sequences", "decoder_start_token_id", "forced_bos_token_id",
    "eos_token_id",
)  # fmt: skip


def misled(folder: Path, dice: random.Random) -> None:
    """A setting that is no such setting."""
    config = read(folder, CONFIG)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        config[dice.choice((*KEYS, *config, *config))] = dice.choice(VALUES)
    put(folder, CONFIG, config)


def lacking(folder: Path, dice: random.Random) -> None:
    config = read(folder, CONFIG)
    for name in dice.sample(sorted(config), dice.randint(1, 5)):
        del config[name]
    put(folder, CONFIG, config)


def immense(folder: Path, dice: random.Random) -> None:
    """A model that no machine could hold, or of very many layers."""
    config = read(folder, CONFIG) | dict.fromkeys(HIDDEN, 2**20)
    for names, size in ((LAYERS, 1024), (WIDTHS, 65_536), (VOCABULARIES, 10_000_000), (LENGTHS, 2**20)):
        config |= dict.fromkeys(names, size) if dice.random() < 0.7 else {}
    put(folder, CONFIG, config)


def long_context(folder: Path, dice: random.Random) -> None:
    """Positions without end, where no table of the file contradicts."""
    put(folder, CONFIG, read(folder, CONFIG) | dict.fromkeys(LENGTHS, 2**20))


def misdirected(folder: Path, dice: random.Random) -> None:
    """A search that cannot be done."""
    said = {name: dice.choice((*VALUES, 2, 5, 0.5)) for name in dice.sample(SEARCH, dice.randint(1, 5))}
    put(folder, GENERATION, {**read(folder, GENERATION), **said, **dice.choice(({}, {"do_sample": True}))})


def twisted(folder: Path, dice: random.Random) -> None:
    """Text that is JSON, nearly."""
    name = dice.choice((CONFIG, GENERATION, SETTINGS, SPECIAL, ADDED, INDEX))
    keys = ("hidden_act", "activation", "afn", "architectures", "model_type", "eos_token", "weight_map", "x")
    text = (folder / name).read_bytes() if (folder / name).exists() else b"{}"
    deep, key = dice.choice((60, 400, 960, 985, 10**5)), dice.choice(keys)
    values = (
        "[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep, "NaN", "-Infinity", "1e999", "9" * 4000, "9" * 5000,
        f'1, "{key}": 2', '"\\ud800"', '"\\u0000"', '1, "\\ud83d": 1', "1, // why", "1, 'a': 1",
    )  # fmt: skip
    at = text.index(b"{") + 1
    rest = text[at:].strip()
    comma = b"" if rest.startswith(b"}") else b","
    put(folder, name, text[:at] + f'"{key}": {dice.choice(values)}'.encode() + comma + rest)


def seductive(folder: Path, dice: random.Random) -> None:
    """Files that other programs would run."""
    owned = folder.parent / "owned"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil", "__init__", "conftest", "torch", "regard"):
        (folder / f"{name}.py").write_text(f"import pathlib\npathlib.Path({str(owned)!r}).touch()\n", "utf-8")
    pickles = ("pytorch_model.bin", "model.pt", "optimizer.pt", "a\nb.pkl", "training_args.bin", "vocab.pkl")
    for name in dice.sample(pickles, 4):
        (folder / name).write_bytes(f"cposix\nsystem\n(S'touch {owned}'\ntR.".encode())
    auto = {"auto_map": {"AutoModel": "modeling_evil.Evil", "AutoTokenizer": ["tokenization_evil.Evil", None]}}
    put(folder, CONFIG, {**read(folder, CONFIG), **auto, "trust_remote_code": True})
    template = {"tokenizer_class": "Evil", "chat_template": "{{ ''.__class__.__mro__ }}"}
    put(folder, SETTINGS, {**read(folder, SETTINGS), **auto, **template})
    if dice.random() < 0.4:
        for path in (*folder.glob("*.safetensors"), folder / INDEX):
            path.unlink(missing_ok=True)


# ---- paths


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, suppress(OSError):
        one.bind(str(path))


THINGS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": _socket,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "chance": lambda path: path.symlink_to("/dev/urandom"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "input": lambda path: path.symlink_to("/dev/stdin"),
    "process": lambda path: path.symlink_to("/proc/self/environ"),
    "out": lambda path: path.symlink_to("/etc/passwd"),
    "up": lambda path: path.symlink_to("../secret.json"),
    "nowhere": lambda path: path.symlink_to("missing"),
    "itself": lambda path: path.symlink_to(path.name),
}
ASTRAY = (
    "../secret.safetensors", "..", ".", "", "/", "/dev/zero", "/etc/passwd", "a\0b", "model-0.safetensors\0", "a\\b",
    "a/../model-0.safetensors", "./model-0.safetensors", "model-0.safetensors/", "C:\\x", "\ud800", "x" * 300, CONFIG,
    "missing.safetensors", INDEX, "a\nb", "~", "$HOME", "file:///etc/passwd", "http://localhost/x", "thing", "link",
)  # fmt: skip


def no_file(folder: Path, dice: random.Random) -> None:
    """Something else stands where a file should."""
    names = (CONFIG, GENERATION, TOKENIZER, SETTINGS, SPECIAL, ADDED, WEIGHTS, INDEX, *OLD)
    path = folder / dice.choice((*names, *sorted(path.name for path in folder.iterdir())))
    path.unlink(missing_ok=True)
    THINGS[dice.choice(sorted(THINGS))](path)


def astray(folder: Path, dice: random.Random) -> None:
    """An index that leads somewhere else."""
    if not (folder / INDEX).exists():
        _shard(folder)
    listed: Any = read(folder, INDEX)["weight_map"]
    name, first = dice.choice((*ASTRAY, str(folder.parent / "secret.safetensors"))), dice.choice(sorted(listed))
    match dice.randrange(6):
        case 0:
            listed[first] = name
        case 1:
            listed = dict.fromkeys(listed, name)
        case 2:
            listed = dice.choice(ODD)
        case 3:
            listed[first] = dice.choice(ODD)
        case 4:
            del listed[first]
        case _:
            listed[dice.choice(NAMES)] = "model-0.safetensors"
    THINGS[dice.choice(sorted(THINGS))](folder / "thing")
    (folder / "link").symlink_to(dice.choice(("../secret.safetensors", "model-0.safetensors", "/dev/zero", "link")))
    put(folder, INDEX, {"weight_map": listed})


def many_shards(folder: Path, dice: random.Random) -> None:
    (folder / WEIGHTS).unlink(missing_ok=True)
    listed = {f"{i}.{j}": f"{i}.safetensors" for i in range(2000) for j in range(40)}
    for name in set(listed.values()):
        (folder / name).write_bytes(encode({"a": torch.zeros(0)}))
    put(folder, INDEX, {"weight_map": listed})


# ---- vocabularies

PATTERNS = (
    "(a+)+$", "(x+x+)+y", "(x|x)*y", "x*x*x*x*y", "x*x*x*y", "x*x*[^x]", "(?:x?){60}y", "(?#[)(x+)+y(?#])", "(?~x+)+",
    "(?x)#[\n(x+)+y#]", r"(x*)\1*y", r"(?<a>x|\g<a>)*", "x{0,100000}", "(?:x{1,1000}){1,1000}", "((((((x*)*)*)*)*)*)*",
    "[", "(", "(?", "\\", "*", "", "(?=x*x*x*x*y)", "(?<=x{1,9})y", "[[](x+)+]", r"\X*\X*y", "(?i)(?-i)(?m).*.*.*y",
    r"(.|\n)*", "x?" * 100, "(" * 900 + ")" * 900, r"\p{Nope}", "x" * 3000, "\ud800",
)  # fmt: skip
PARTS = (
    {"type": []}, {"type": {}}, {"type": "Nope"}, [], "x", {}, {"type": "Sequence"}, {"type": "Strip"},
    {"type": "Sequence", "normalizers": "x"}, {"type": "FixedLength", "length": 0},
    {"type": "Split", "pattern": {"String": ""}, "behavior": "Removed", "invert": False},
)  # fmt: skip
MODELS = (
    {"type": "Unigram", "unk_id": 9, "vocab": [["<unk>", 0.0]]},
    {"type": "Unigram", "unk_id": -1, "vocab": [["<unk>", 0.0]]},
    {"type": "Unigram", "unk_id": "x", "vocab": [["<unk>", "x"]]},
    {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 1e308], ["x", -1e308], ["xx", 1e308]]},
    *({"type": "WordLevel", "unk_token": "a", "vocab": {"a": number}} for number in (-1, 2**32, 1_999_999, "x", 0.5)),
    {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "b": 0}},
    {"type": "WordLevel", "unk_token": [], "vocab": []},
    *(
        {"type": "BPE", "vocab": {"x": 0, "xx": 1}, "merges": merges, "dropout": 7, "unk_token": "nope"}
        for merges in (["x x"] * 10**5, [["x", "x", "x"]], ["x"], [["x", "y"]], "x", [[]], {"a": 1})
    ),
)
MARKS = (
    "", "nope", "\ud800", "a", " ", {"content": "\ud800"}, {"content": 1}, {"content": "<unk>"}, [], 1, None, "<s>",
    "x" * 10**5, "</s>", "[CLS]", "<unk>", True,
)  # fmt: skip


def broken_parts(folder: Path, dice: random.Random) -> None:
    """A tokenizer.json of which one part would take all time or memory, or is none."""
    about, role = tokenizer_of(folder), dice.choice(("normalizer", "pre_tokenizer", "decoder"))
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": dice.random() < 0.5}
    nested: Any = {"type": "Lowercase"}
    for _ in range(dice.choice((30, 200, 300))):
        nested = sequence("normalizer", nested)
    match dice.randrange(9):
        case 0 | 1:
            about["pre_tokenizer"] = split(dice.choice(PATTERNS))
        case 2:
            about["normalizer"] = _repeated(_replaced({"Regex": dice.choice(PATTERNS)}, "yy"), dice.choice((1, 5)))
        case 3:
            about["normalizer"] = nested
        case 4:
            about["normalizer"] = _repeated({"type": "ByteLevel"}, dice.choice((2, 60)))
            about["pre_tokenizer"] = sequence("pre_tokenizer", *[level] * dice.choice((1, 2, 60)))
        case 5:
            about["normalizer"] = _repeated(_charsmap(dice), dice.choice((1, 30)))
        case 6:
            before = {"type": "Prepend", "prepend": "x" * dice.choice((10, 10**6)), "pattern": {"Regex": "a"}}
            about["normalizer"] = _repeated(before, dice.choice((1, 50)))
        case 7:
            about[role] = sequence(role, *[_replaced({"String": "x"}, "xx")] * dice.choice((3, 60)))
        case _:
            about[role] = dice.choice(PARTS)
    put(folder, TOKENIZER, about)


def broken_model(folder: Path, dice: random.Random) -> None:
    """A tokenizer.json of which the tokens are too many, too long, or none."""
    about = tokenizer_of(folder)
    model, added = about["model"], about["added_tokens"]
    match dice.randrange(10):
        case 0 | 1:
            about["model"] = dice.choice(MODELS)
        case 2:
            affix = dice.choice(("continuing_subword_prefix", "end_of_word_suffix"))
            model[affix] = "#" * dice.choice((100, 10**7))
        case 3:
            model["max_input_chars_per_word"] = dice.choice((10_000, 10**9, -1, "x", None, True))
        case 4:
            length = dice.choice((9, 4000))
            about["added_tokens"] = [{**added[0], "content": f"{i}{_letters(length, dice)}"} for i in range(4000)]
        case 5:
            for one in added:
                one["content"] = dice.choice(("", " ", "a", "x" * 10**6, "\0", "\n", "\ud800"))
        case 6:
            for one in added:
                one["id"] = dice.choice((0, 5, -1, 10**7, 2**32 - 1, 2**40, "x", None))
        case 7:
            table = [["<unk>", 0.0], *([_letters(4000, dice), -1.0] for _ in range(4000))]
            about["model"] = {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": table}
        case 8:
            model["vocab"] = dice.choice((dict.fromkeys(["a", "b", "[UNK]"], 1), {}, [], None, 7, {"": 0}))
            model["unk_token"] = dice.choice(([], {}, "nope" * 1000, 1, None, "\ud800", "a"))
        case _:
            fixed = {"strategy": {"Fixed": 2**40}, "direction": "Left", "pad_id": 0, "pad_token": "x", "pad_type_id": 0}
            about |= {"truncation": {"max_length": 0}, "padding": fixed, "extra": [0] * dice.choice((10, 2_000_000))}
            about["version"] = dice.choice(("1.0", "9.9", None, 1, []))
    put(folder, TOKENIZER, about)


def misnamed(folder: Path, dice: random.Random) -> None:
    """Marks that are none."""
    marks = dice.sample(("unk", "sep", "pad", "cls", "mask", "bos", "eos"), 4)
    odd = dice.choice(("do_lower_case", "strip_accents", "add_prefix_space", "model_max_length"))
    name = dice.choice((SETTINGS, SPECIAL))
    said = {**{f"{mark}_token": dice.choice(MARKS) for mark in marks}, odd: dice.choice(VALUES)}
    put(folder, name, {**read(folder, name), **said})


def old_lists(folder: Path, dice: random.Random) -> None:
    """Old files of a vocabulary: lists of tokens, and of merges."""
    tables = (
        {"a": 1_999_999}, {"</s>": 0, "<unk>": 1, "<pad>": 1_999_999}, {"a": -1}, {"a": "x"}, {}, [], {"\ud800": 0},
        {"": 0, "<unk>": 1}, {"a": 1.0}, {"a": True}, {f"{i}": 7 for i in range(50)}, {"<unk>": 0, "x" * 100_000: 6},
    )  # fmt: skip
    texts = (
        b"a b\n" * 100_000, b"a  b\n", b"a\n", b"\xff\n", b"#version: 0.2\n", "é é\n".encode(), b"x" * 10**6, b"",
        b"\0\n", b"\r\n" * 1000, b"[UNK]\n[UNK]\n[CLS]\n[SEP]\n", b"[UNK]\n" + b"x" * 10_000,
    )  # fmt: skip
    (folder / TOKENIZER).unlink(missing_ok=True)
    if dice.random() < 0.5:
        put(folder, dice.choice(("vocab.json", "target_vocab.json", ADDED)), dice.choice(tables))
    else:
        put(folder, dice.choice(("vocab.txt", "merges.txt")), dice.choice(texts))
    if dice.random() < 0.5:
        (folder / dice.choice(OLD)).unlink(missing_ok=True)


def old_models(folder: Path, dice: random.Random) -> None:
    """SentencePiece models that are none, or not to be made."""
    unknown, kind = spm.Piece("<unk>", kind=spm.UNKNOWN), dice.choice((spm.UNIGRAM, spm.BPE))
    maps = (b"\0", b"\xff" * 99, struct.pack("<I", 4) + b"\0" * 8)
    models = (
        spm.Model((unknown, spm.Piece("a" * dice.choice((100, 200_000)))), kind=kind),
        spm.Model((unknown, *(spm.Piece("a" * n) for n in range(1, dice.choice((50, 250, 1500))))), kind=kind),
        spm.Model((unknown, spm.Piece("a")), charsmap=dice.choice(maps), kind=kind),
        spm.Model((spm.Piece("a", float("nan")), unknown), kind=kind),
        spm.Model((spm.Piece("", float("inf")), unknown, spm.Piece("a", -1e38)), kind=kind),
        spm.Model((spm.Piece("a"),), kind=kind),
        spm.Model((unknown, *(spm.Piece(f"<0x{n:02X}>", kind=spm.BYTE) for n in range(99))), kind=kind, bytewise=True),
    )
    nonsense = (b"\x78\0" * 4_000_000, b"\x0a\0" * 100_000, b"\x0a" + b"\xff" * 8 + b"\x7f", dice.randbytes(999))
    (folder / TOKENIZER).unlink(missing_ok=True)
    data = spm.encode(dice.choice(models)) if dice.random() < 0.7 else dice.choice(nonsense)
    put(folder, dice.choice(("source.spm", "target.spm", "spiece.model")), data)


def tokenizer_of(folder: Path) -> dict[str, Any]:
    """The tokenizer.json of a folder; where it has old files, what they mean."""
    if not (folder / TOKENIZER).exists():
        held = read_tokenizers(folder, read(folder, CONFIG))
        assert held is not None
        (folder / TOKENIZER).write_text(held.target.to_str(), "utf-8")
    return read(folder, TOKENIZER)


def sequence(role: str, *parts: Any) -> dict[str, Any]:
    inside = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}[role]
    return {"type": "Sequence", inside: list(parts)}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _repeated(part: Any, times: int) -> dict[str, Any]:
    return sequence("normalizer", *[part] * times)


def _replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _charsmap(dice: random.Random) -> dict[str, Any]:
    """A table that leads anywhere."""
    table = base64.b64encode(struct.pack("<I", 1024) + dice.randbytes(1024) + b"xx\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": table}


def _letters(count: int, dice: random.Random) -> str:
    return "".join(dice.choices("abcdefgh", k=count))


CHANGES: dict[str, tuple[Change, int]] = {  # each with its share of a thousand
    "damaged": (damaged, 150),
    "lying": (lying, 120),
    "lying bytes": (lying_bytes, 40),
    "sparse": (sparse, 10),
    "no numbers": (no_numbers, 30),
    "misled": (misled, 150),
    "lacking": (lacking, 30),
    "immense": (immense, 20),
    "long context": (long_context, 10),
    "misdirected": (misdirected, 50),
    "twisted": (twisted, 50),
    "seductive": (seductive, 20),
    "no file": (no_file, 80),
    "astray": (astray, 60),
    "many shards": (many_shards, 2),
    "broken parts": (broken_parts, 60),
    "broken model": (broken_model, 50),
    "misnamed": (misnamed, 30),
    "old lists": (old_lists, 20),
    "old models": (old_models, 18),
}
