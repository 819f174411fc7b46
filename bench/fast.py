"""The accelerator in int8 against CTranslate2 and onnxruntime in int8: the same weights, the same work.

    python -m bench.fast                 # all of it
    python -m bench.fast translate gpt2  # some of it: translate, gpt2, encode

Every engine works in processes of its own (bench/apart.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench import peers
from bench.apart import Run, any_of, compare, engines
from bench.harness import Comparison, len_cores, report

LENGTH = 30  # tokens of a source and of an answer
BOS, EOS, PAD = 1, 2, 0
SIZES = {"small": 8_000, "base": 32_000}  # and their vocabulary
PROMPT, WRITTEN = 32, 64  # tokens of GPT-2
TEXTS = 64
PEERS = "onnxruntime fp32", "onnxruntime int8"
OFF = 0.5  # how far vectors in int8 may be from each other; their numbers are of order one


def main() -> None:
    wanted = sys.argv[1:] or list(COMPARISONS)
    with TemporaryDirectory() as scratch:
        found = [each for name in wanted for each in COMPARISONS[name](Path(scratch))]
    note = (
        f"Translation: {LENGTH} tokens out, sources of {LENGTH} tokens. GPT-2 of 124 million parameters, batch 1: "
        f"{WRITTEN} tokens after {PROMPT}. Reading: {TEXTS} texts of mixed lengths (see bench/encode.py), with an "
        "encoder of 6 layers, 384 wide; onnxruntime reads them one at a time, which is several times as quick as one "
        "padded batch. Random weights, equal on both sides, quantised by each engine itself. Each engine in processes "
        f"of its own, with one thread or {len_cores()}, whichever is quicker (in brackets). "
        f"CTranslate2 {version('ctranslate2')}, onnxruntime {version('onnxruntime')}."
    )
    report("fast", "The accelerator against CTranslate2 and onnxruntime", note, found)


# ---- translation


def translate(scratch: Path) -> list[Comparison]:
    found = []
    for size, vocab in SIZES.items():
        model = peers.ours(size, vocab).eval()
        torch.save(model, scratch / f"{size}.pt")
        save_for_ctranslate2(model, scratch / size)
        agree(scratch / f"{size}.pt", scratch / size, vocab)
        with engines(ours, scratch / f"{size}.pt") as mine, engines(theirs, scratch / size) as peer:
            for batch, width in ((1, 1), (1, 4), (32, 1), (32, 4)):
                repeat = 8 if size == "small" and batch == 1 else 1  # a few milliseconds are too few to be measured
                asked = sources(vocab, batch), width, repeat
                able = {
                    name: {way: partial(engine, *asked) for way, engine in some.items()}
                    for name, some in (("regard int8", mine), ("CTranslate2 int8", peer))
                }
                found.append(compare(f"{size}, batch {batch}, beam {width}", batch * LENGTH * repeat, able))
    return found


def agree(path: Path, folder: Path, vocab: int) -> None:
    """In floats both say the same words; in whole numbers, which each makes in its own way, they need not."""
    asked = sources(vocab, 4), 1, 1
    words = ours(1, path, whole=False)(*asked), theirs(1, folder, "float32")(*asked)
    assert [[str(word) for word in row] for row in words[0]] == words[1], "the two engines disagree in fp32"


def save_for_ctranslate2(model: Any, folder: Path) -> None:
    from regard.data.tokenizer import Tokenizers
    from regard.interop.ctranslate2 import _generator, _translator  # their checks take longer than this race
    from regard.interop.hf import numbers

    named = numbers(model.config.vocab, {"pad_token_id": PAD, "decoder_start_token_id": BOS, "eos_token_id": EOS})
    spec = _translator(model, Tokenizers(named, named)) if model.sourced else _generator(model, named)
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))


def sources(vocab: int, batch: int) -> torch.Tensor:
    words = torch.randint(4, vocab, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    words[:, -1] = EOS
    return words


def writer_of(path: Path, whole: bool) -> Any:
    from regard.fast.writer import Writer

    return Writer(torch.load(path, weights_only=False).eval(), whole=whole)


def ours(threads: int, path: Path, whole: bool = True) -> Run:
    writer = writer_of(path, whole)

    def run(source: torch.Tensor, width: int, repeat: int) -> list[list[int]]:
        prompt = torch.full((len(source), 1), BOS)
        for _ in range(repeat):
            found = writer(source, None, prompt, eos=EOS, limit=LENGTH, keep=width, shortest=LENGTH)
        return [list(best[0].tokens) for best in found]

    return run


def theirs(threads: int, folder: Path, kind: str = "int8") -> Run:
    import ctranslate2

    engine = ctranslate2.Translator(str(folder), compute_type=kind, intra_threads=threads, inter_threads=1)

    def run(source: torch.Tensor, width: int, repeat: int) -> list[list[str]]:
        words = [[str(word) for word in row[:-1]] for row in source.tolist()]  # it adds the end by itself
        for _ in range(repeat):
            found = engine.translate_batch(
                words, beam_size=width, min_decoding_length=LENGTH, max_decoding_length=LENGTH
            )
        return [answer.hypotheses[0] for answer in found]

    return run


# ---- GPT-2


def gpt2(scratch: Path) -> list[Comparison]:
    model = peers.our_gpt2().eval()
    torch.save(model, scratch / "gpt2.pt")
    save_for_ctranslate2(model, scratch / "gpt2")
    with engines(our_gpt2, scratch / "gpt2.pt") as mine, engines(their_gpt2, scratch / "gpt2") as peer:
        return [compare("GPT-2 124M, batch 1", WRITTEN, {"regard int8": {**mine}, "CTranslate2 int8": {**peer}})]


def prompt() -> torch.Tensor:
    return torch.randint(4, 50_000, (1, PROMPT), generator=torch.Generator().manual_seed(1))


def our_gpt2(threads: int, path: Path) -> Run:
    writer = writer_of(path, whole=True)
    return lambda: writer(None, None, prompt(), eos=EOS, limit=WRITTEN, shortest=WRITTEN)


def their_gpt2(threads: int, folder: Path) -> Run:
    import ctranslate2

    engine = ctranslate2.Generator(str(folder), compute_type="int8", intra_threads=threads, inter_threads=1)
    given = [[str(word) for word in prompt()[0].tolist()]]
    how = {"min_length": WRITTEN, "max_length": WRITTEN, "include_prompt_in_result": False, "sampling_topk": 1}
    return lambda: engine.generate_batch(given, **how)[0].sequences_ids


# ---- reading texts


def encode(scratch: Path) -> list[Comparison]:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from bench.encode import VOCAB, check, reader, save, texts
    from regard.models import bert

    torch.manual_seed(0)
    model = bert.Bert(bert.Config(vocab=VOCAB, dim=384, heads=12, layers=6, hidden=1536, head="pretrain")).eval()
    paths = save(model, scratch, onnx=True)
    whole = scratch / "int8.onnx"
    quantize_dynamic(paths["onnxruntime"], whole, weight_type=QuantType.QInt8, per_channel=True)
    places = {
        "regard int8": (paths["regard"], "regard int8", "alike"),
        "regard fp32": (paths["regard"], "regard fp32", "alike"),
        "onnxruntime fp32": (paths["onnxruntime"], "onnxruntime", "one at a time"),
        "onnxruntime int8": (whole, "onnxruntime", "one at a time"),
    }
    with ExitStack() as open_engines:
        able = {
            name: {
                threads: partial(one, order)
                for threads, one in open_engines.enter_context(engines(reader, path, engine, TEXTS, "cpu")).items()
            }
            for name, (path, engine, order) in places.items()
        }
        check({name: any_of(ways)() for name, ways in able.items() if name.endswith("fp32")}, 1e-4)
        check({name: any_of(ways)() for name, ways in able.items()}, OFF)
        tokens = sum(map(len, texts(TEXTS)))
        return [
            compare(f"reading {TEXTS} texts, {kind}", tokens, {n: able[n] for n in (f"regard {kind}", *PEERS)})
            for kind in ("int8", "fp32")
        ]


COMPARISONS: dict[str, Callable[[Path], list[Comparison]]] = {"translate": translate, "gpt2": gpt2, "encode": encode}

if __name__ == "__main__":
    main()
