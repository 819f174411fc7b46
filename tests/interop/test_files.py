"""A folder that somebody else wrote is believed only after it was found to be true."""

from __future__ import annotations

import json
import math
import random
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from interop.foreign import save

from regard.errors import CheckpointError, ConfigError, RegardError
from regard.interop.engine import Comparison, check_vacant
from regard.interop.files import MEGABYTE, inside, load, read_config, read_entries, read_header, read_json
from regard.interop.hf import import_folder
from regard.pipeline import load as load_run
from regard.weights import encode

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.zeros(0, 2)}


def test_a_length_without_limit_as_transformers_writes_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": int(1e30)}), "utf-8")
    assert read_json(tmp_path / "tokenizer_config.json") == {"model_max_length": int(1e30)}


def weights(folder: Path, name: str = "model.safetensors") -> Path:
    path = folder / name
    path.write_bytes(encode(TENSORS))
    return path


def lie(path: Path, header: Any, data: bytes = b"\0" * 24) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(begin: int, end: int, shape: list[Any], dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


# ------------------------------------------------------------------ JSON


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": Infinity}', "Infinity is no number"),
        (b'{"a": 1, "a": 2}', "a name occurs twice"),
        (b"[1, 2]", "holds a list, but an object"),
        (b'{"a": 1', "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "cannot be read as JSON"),
        (b" " * (MEGABYTE + 1), "1048577 bytes came, but at most 1048576 are read"),
    ],
    ids=range(9),
)
def test_json_is_strict_and_in_bounds(text: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=sentence):
        read_json(tmp_path / "config.json")


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config.json; name a Hugging Face folder"):
        read_config(tmp_path)
    with pytest.raises(CheckpointError, match=r"no such folder; name a Hugging Face folder"):
        read_config(tmp_path / "nowhere")


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/b", "..", ".", "", "a\\b", "a\0b", "/"])
def test_no_name_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="only files of the folder itself are read"):
        inside(tmp_path, name)


def test_a_link_leads_out_only_in_a_cache(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "model" / "snapshots" / "1f", tmp_path / "model" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "5e").write_text("{}", "utf-8")
    (tmp_path / "secret").write_text("{}", "utf-8")
    (snapshot / "config.json").symlink_to("../../blobs/5e")
    (snapshot / "index.json").symlink_to(tmp_path / "secret")
    assert read_config(snapshot) == {}
    with pytest.raises(CheckpointError, match="leads out of the folder; put the file itself there"):
        inside(snapshot, "index.json")


def test_shards(tmp_path: Path) -> None:
    (tmp_path / "1.safetensors").write_bytes(encode({"a": TENSORS["a"]}))
    (tmp_path / "2.safetensors").write_bytes(encode({"b": TENSORS["b"]}))
    index = tmp_path / "model.safetensors.index.json"

    def listed(**shards: Any) -> Path:
        index.write_text(json.dumps({"weight_map": shards}), "utf-8")
        return tmp_path

    entries = read_entries(listed(a="1.safetensors", b="2.safetensors"))
    assert torch.equal(load(entries, ["a", "b"])["a"], TENSORS["a"])
    for shards, sentence in (
        ({"a": "1.safetensors", "b": "1.safetensors"}, r"its tensors are not those of .* \('b'\)"),
        ({"a": "3.safetensors"}, "no such file; restore it"),
        ({"a": "../1.safetensors"}, "only files of the folder itself"),
        ({"a": str(tmp_path / "1.safetensors")}, "only files of the folder itself"),
        ({"a": 1}, "must name a file for each tensor"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            read_entries(listed(**shards))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "model.ckpt"])
def test_a_pickle_is_refused_with_the_way_to_convert_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(CheckpointError, match=r"can run code as it is opened.*convert it: transformers\.AutoModel"):
        read_entries(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model.safetensors; fetch it"):
        read_entries(tmp_path)


# ------------------------------------------------------------------ headers


def test_a_true_header(tmp_path: Path) -> None:
    found = read_header(weights(tmp_path))
    assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
        "a": ("F32", (2, 3)), "b": ("BF16", (4,)), "c": ("F32", (0, 2)),
    }  # fmt: skip
    read = load(found, found)
    assert all(torch.equal(read[name], TENSORS[name].float()) for name in TENSORS)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"a": tensor(0, 24, [6], "F33")}, "no type, shape and place"),
        ({"a": tensor(0, 24, [-6])}, "no type, shape and place"),
        ({"a": tensor(0, 24, [2**40, 2**40])}, "which is not 24 bytes"),
        ({"a": tensor(0, 24, [6.0])}, "no type, shape and place"),
        ({"a": tensor(0, 24, [True] * 2)}, "no type, shape and place"),
        ({"a": tensor(0, 24, [1] * 9)}, "no type, shape and place"),
        ({"a": tensor(0, 24, [7])}, "which is not 24 bytes"),
        ({"a": tensor(24, 0, [6])}, "which is not -24 bytes"),
        ({"a": tensor(0, 24, [6]), "b": tensor(0, 24, [6])}, "overlap or leave gaps"),
        ({"a": tensor(0, 8, [2]), "b": tensor(12, 24, [3])}, "overlap or leave gaps"),
        ({"a": tensor(0, 16, [4])}, "but it has"),
        ({"a": tensor(0, 4 * 10**9, [10**9])}, r"its header promises 4\d+ bytes, but it has"),
        ({"a": [1, 2]}, "no type, shape and place"),
        ([1], "no table of at most"),
        (b"{", "its header is no JSON"),
        (b"[" * 100_000, "its header is no JSON"),
    ],
    ids=range(16),
)
def test_a_lying_header_is_not_believed(header: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=sentence) as error:
        read_header(lie(tmp_path / "model.safetensors", header))
    assert "cannot be believed" in str(error.value)


@pytest.mark.parametrize("data", [b"", b"\1", b"\xff" * 64, struct.pack("<Q", 2**62)])
def test_what_is_no_safetensors_file(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="cut short, or no safetensors file"):
        read_header(tmp_path / "model.safetensors")


# ------------------------------------------------------------------ mutations


def mutate(folder: Path, dice: random.Random) -> None:
    """One thing is wrong, somewhere."""
    path = folder / dice.choice(("config.json", "model.safetensors", "model.safetensors", "generation_config.json"))
    data = bytearray(path.read_bytes() if path.exists() else b"{}")
    match dice.randrange(5):
        case 0:
            del data[dice.randrange(len(data)) :]
        case 1:
            data[dice.randrange(min(len(data), 2000))] = dice.randrange(256)
        case 2:
            data += dice.randbytes(dice.randint(1, 99))
        case 3:
            at = dice.randrange(min(len(data), 2000))
            data[at : at + dice.randint(1, 40)] = dice.randbytes(dice.randint(0, 40))
        case _ if path.suffix == ".json":
            values = json.loads(bytes(data))
            key = dice.choice([*values, "n_embd", "vocab_size", "n_layer", "max_length"])
            values[key] = dice.choice((None, -1, 0, 10**30, 1e300, "x", [], {}, True, [[]], "../../x", "\0"))
            data = bytearray(json.dumps(values).encode())
        case _:
            data[:8] = struct.pack("<Q", dice.choice((0, 1, 2**20, 2**63)))
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "MarianMTModel"])
def test_whatever_is_wrong_with_a_folder_is_said_in_a_sentence(architecture: str, tmp_path: Path) -> None:
    save(architecture, tmp_path)
    original = {path: path.read_bytes() for path in tmp_path.iterdir()}
    sentences, dice = [], random.Random(0)
    for _ in range(250):
        mutate(tmp_path, dice)
        try:
            import_folder(tmp_path)
        except RegardError as error:
            sentences.append(str(error))
        assert set(tmp_path.iterdir()) - original.keys() <= {tmp_path / "generation_config.json"}
        for path, data in original.items():
            path.write_bytes(data)
    assert len(sentences) > 125
    assert not [said for said in sentences if "\n" in said or str(tmp_path) not in said]


def test_a_configuration_cannot_ask_for_more_memory_than_its_file_fills(tmp_path: Path) -> None:
    save("MarianMTModel", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config |= {"d_model": 65_536, "vocab_size": 10_000_000, "max_position_embeddings": 2**20, "encoder_layers": 50}
    config |= {"encoder_attention_heads": 64, "decoder_attention_heads": 64}  # 3 terabytes
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="and the weights of one and the same model"):
        import_folder(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "\ud800"], ids=["nul", "long", "half a letter"])
def test_a_name_that_no_folder_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no folder can be there; name another$"):
        check_vacant(Path(name))
    with pytest.raises(CheckpointError, match="no such folder; runs are made by"):
        load_run(name)


def test_a_word_that_is_never_said_does_not_set_the_scale() -> None:
    found = Comparison()
    found.numbers(torch.tensor([2.0, -1e9]), torch.tensor([2.5, -1e9]))
    with pytest.raises(RegardError, match=r"differs by at most 5\.0e-01 of 2 "):
        found.check("an engine")


@pytest.mark.parametrize(
    ("number", "what"), [(math.nan, r"no number \(NaN\)"), (math.inf, "infinite"), (-math.inf, "infinite")]
)
def test_weights_are_numbers(number: float, what: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(encode({"a": torch.tensor([1.0, number])}))
    with pytest.raises(CheckpointError, match=f"'a' holds what is {what}; fetch it again, or train it anew"):
        load(read_entries(tmp_path), ["a"])
