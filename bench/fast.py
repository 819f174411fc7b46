"""The accelerator in int8 against CTranslate2 and onnxruntime in int8: the same weights, the same work.

    python -m bench.fast                 # all of it
    python -m bench.fast translate gpt2  # some of it: translate, gpt2, encode

Every engine works in processes of its own (bench/apart.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench import peers
from bench.apart import Engine, Run, any_of, compare, engines, quickest, running
from bench.generate import talkative
from bench.harness import Comparison, common_told, in_common, len_cores, raced, refuse_others, report

LENGTH = 30  # tokens of a source and of an answer
BOS, EOS, PAD = 1, 2, 0
SIZES = {"small": 8_000, "base": 32_000}  # and their vocabulary
PROMPT, WRITTEN = 32, 64  # tokens of GPT-2
TEXTS = 64
CHECKED = 8  # sentences
KINDS = "int8", "fp32"
SHARED = f"inter_threads={len_cores()}"  # CTranslate2's sentences in equal shares, a thread for each
ALIKE, OFF = 1e-4, 0.5  # how far vectors in fp32, in int8 may be from each other; their numbers are of order one

BATCHES = (1, 1), (1, 4), (32, 1), (32, 4)  # of translation, with their beams
NAMES = [
    *(f"{size}, batch {batch}, beam {width}" for size in SIZES for batch, width in BATCHES),
    "GPT-2 124M, batch 1",
    *(f"reading {TEXTS} texts, {kind}" for kind in KINDS),
]


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [*COMPARISONS])
    found: list[Comparison] = []

    def race(name: str) -> None:
        with TemporaryDirectory() as scratch:
            found.extend(COMPARISONS[name](Path(scratch)))

    for name in asked or [*COMPARISONS]:
        raced(race, name)
    report("fast", "The accelerator against CTranslate2 and onnxruntime", note, found, known=NAMES)


def note(lines: Sequence[Comparison]) -> str:
    return (
        f"Translation: {LENGTH} tokens out, sources of {LENGTH} tokens. GPT-2 of 124 million parameters, batch 1: "
        f"{WRITTEN} tokens after {PROMPT}. Reading: {TEXTS} texts of mixed lengths (see bench/encode.py), with an "
        "encoder of 6 layers, 384 wide; onnxruntime reads them in the order that suits it best (one padded batch, by "
        "length in eights, one at a time), its file as it was exported or fused by onnxruntime.transformers.optimizer. "
        "Random weights, equal on both sides, quantised by each engine itself. Each engine in processes of its own, "
        f"with one thread or {len_cores()}; CTranslate2 has batches of 32 also in {len_cores()} shares side by side. "
        "Of all ways the quickest is raced, which stands in brackets. In fp32 those that write were checked to give "
        f"the same answers, to {CHECKED} sentences greedily and with a beam of 4, and to GPT-2's prompt; in int8, "
        f"which each rounds in its own way, {common_told(lines)}. Vectors of texts were checked to differ by at most "
        f"{ALIKE} in fp32, by {OFF} in int8. CTranslate2 {version('ctranslate2')}, "
        f"onnxruntime {version('onnxruntime')}."
    )


# ---- translation


def translate(scratch: Path) -> list[Comparison]:
    found = []
    for size, vocab in SIZES.items():
        model = peers.ours(size, vocab).eval()
        torch.save(model, scratch / f"{size}.pt")
        save_for_ctranslate2(model, scratch / size)
        agree(scratch / f"{size}.pt", scratch / size, vocab)
        with (
            engines(ours, scratch / f"{size}.pt") as mine,
            engines(theirs, scratch / size) as peer,
            running({SHARED: (theirs, len_cores(), scratch / size, "int8", len_cores())}) as shared,
        ):
            for batch, width in BATCHES:
                repeat = 8 if size == "small" and batch == 1 else 1  # a few milliseconds are too few to be measured
                asked = sources(vocab, batch), width, repeat
                sharing = peer | shared if batch > 1 else peer  # one sentence has no shares
                able = {
                    name: {way: partial(engine, *asked) for way, engine in some.items()}
                    for name, some in (("regard int8", mine), ("CTranslate2 int8", sharing))
                }
                found.append(compare(f"{size}, batch {batch}, beam {width}", batch * LENGTH * repeat, able))
                if batch > 1:
                    found[-1].same = in_common(*(any_of(ways)() for ways in able.values()))
    return found


def agree(path: Path, folder: Path, vocab: int) -> None:
    """In floats both say the same words; in whole numbers, which each makes in its own way, they need not."""
    mine, peer = ours(1, path, whole=False), theirs(1, folder, "float32")
    for width in (1, 4):
        asked = sources(vocab, CHECKED), width, 1
        assert mine(*asked) == peer(*asked), f"the two engines disagree in fp32, beam {width}"


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

    def run(source: torch.Tensor, width: int, repeat: int) -> list[list[str]]:
        prompt = torch.full((len(source), 1), BOS)
        for _ in range(repeat):
            found = writer(source, None, prompt, eos=EOS, limit=LENGTH, keep=width, shortest=LENGTH)
        return [[str(word) for word in best[0].tokens] for best in found]

    return run


def theirs(threads: int, folder: Path, kind: str = "int8", shares: int = 1) -> Run:
    """It works at so many shares of the sentences at a time, and each has its part of the threads."""
    import ctranslate2

    engine = ctranslate2.Translator(
        str(folder), compute_type=kind, intra_threads=threads // shares, inter_threads=shares
    )  # fmt: skip

    def run(source: torch.Tensor, width: int, repeat: int) -> list[list[str]]:
        words = [[str(word) for word in row[:-1]] for row in source.tolist()]  # it adds the end by itself
        for _ in range(repeat):
            found = engine.translate_batch(
                words, beam_size=width, min_decoding_length=LENGTH, max_decoding_length=LENGTH,
                max_batch_size=-(-len(words) // shares),
            )  # fmt: skip
        return [answer.hypotheses[0] for answer in found]

    return run


# ---- GPT-2


def gpt2(scratch: Path) -> list[Comparison]:
    same_in_fp32(scratch)
    model = peers.our_gpt2().eval()
    torch.save(model, scratch / "gpt2.pt")
    save_for_ctranslate2(model, scratch / "gpt2")
    with engines(our_gpt2, scratch / "gpt2.pt") as mine, engines(their_gpt2, scratch / "gpt2") as peer:
        able: dict[str, dict[str, Run]] = {"regard int8": {**mine}, "CTranslate2 int8": {**peer}}
        found = compare("GPT-2 124M, batch 1", WRITTEN, able)
        found.same = in_common(*(any_of(ways)() for ways in able.values()))
    return [found]


def same_in_fp32(scratch: Path) -> None:
    """With weights that make every token hang on all those before it."""
    model = talkative(peers.our_gpt2()).eval()
    torch.save(model, scratch / "talkative.pt")
    save_for_ctranslate2(model, scratch / "talkative")
    mine = our_gpt2(1, scratch / "talkative.pt", whole=False)
    assert mine() == their_gpt2(1, scratch / "talkative", "float32")(), "the two engines disagree in fp32 on GPT-2"


def prompt() -> torch.Tensor:
    return torch.randint(4, 50_000, (1, PROMPT), generator=torch.Generator().manual_seed(1))


def our_gpt2(threads: int, path: Path, whole: bool = True) -> Run:
    writer = writer_of(path, whole)

    def run() -> list[list[int]]:
        return [list(best[0].tokens) for best in writer(None, None, prompt(), eos=EOS, limit=WRITTEN, shortest=WRITTEN)]

    return run


def their_gpt2(threads: int, folder: Path, kind: str = "int8") -> Run:
    import ctranslate2

    engine = ctranslate2.Generator(str(folder), compute_type=kind, intra_threads=threads, inter_threads=1)
    given = [[str(word) for word in prompt()[0].tolist()]]
    how = {"min_length": WRITTEN, "max_length": WRITTEN, "include_prompt_in_result": False, "sampling_topk": 1}
    return lambda: engine.generate_batch(given, **how)[0].sequences_ids


# ---- reading texts


def encode(scratch: Path) -> list[Comparison]:
    from bench.encode import ORDERS, VOCAB, check, reader, save, texts
    from regard.models import bert

    tokens = sum(map(len, texts(TEXTS)))
    torch.manual_seed(0)
    model = bert.Bert(bert.Config(vocab=VOCAB, dim=384, heads=12, layers=6, hidden=1536, head="pretrain")).eval()
    paths = save(model, scratch, onnx=True)
    files = forms(paths["onnxruntime"], model.config.heads, model.config.dim)
    with ExitStack() as stack:
        able: dict[str, dict[str, Run]] = {
            f"regard {kind}": {
                threads: partial(one, "alike")
                for threads, one in stack.enter_context(
                    engines(reader, paths["regard"], f"regard {kind}", TEXTS, "cpu")
                ).items()
            }
            for kind in KINDS
        }
        peer = stack.enter_context(engines(readers, files))
        vectors = {name: any_of(ways)() for name, ways in able.items()}
        vectors |= {form: one(form, "one at a time") for form in files for one in peer.values()}  # which warms them too
        check({name: some for name, some in vectors.items() if "fp32" in name}, ALIKE)
        check(vectors, OFF)
        best = {f"onnxruntime {kind}": in_best_order(peer, [f for f in files if kind in f], ORDERS) for kind in KINDS}
        return [
            compare(
                f"reading {TEXTS} texts, {kind}", tokens, {f"regard {kind}": able[f"regard {kind}"], **best}, rounds=9
            )
            for kind in KINDS
        ]


def readers(threads: int, paths: dict[str, Path]) -> Run:
    """onnxruntime with each of its files, of which one is read at a time, so that one process is enough."""
    from bench.encode import reader

    found = {form: reader(threads, path, "onnxruntime", TEXTS, "cpu") for form, path in paths.items()}
    return lambda form, order: found[form](order)


def in_best_order(running: dict[str, Engine], some: Sequence[str], orders: Sequence[str]) -> dict[str, Run]:
    """The quickest of all ways to read with some of the files: which it was, and the run."""
    ways: dict[str, Run] = {
        f"{form}, {order}, {threads}": partial(one, form, order)
        for threads, one in running.items()
        for form in some
        for order in orders
    }
    way = quickest(ways, warm=False)
    return {way: ways[way]}


def forms(exported: Path, heads: int, dim: int) -> dict[str, Path]:
    """onnxruntime's files of a BERT: as it was exported and, where its optimizer is installed, fused by that; both in
    int8 too."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    found = {"fp32": exported}
    with suppress(ImportError):
        from onnxruntime.transformers.optimizer import optimize_model

        found["fused fp32"] = exported.with_name("fused.onnx")
        optimize_model(str(exported), "bert", heads, dim).save_model_to_file(str(found["fused fp32"]))
    whole = {form.replace("fp32", "int8"): path.with_name(f"{path.stem}-int8.onnx") for form, path in found.items()}
    for path, to in zip(found.values(), whole.values(), strict=True):
        quantize_dynamic(path, to, weight_type=QuantType.QInt8, per_channel=True)
    return found | whole


COMPARISONS: dict[str, Callable[[Path], list[Comparison]]] = {"translate": translate, "gpt2": gpt2, "encode": encode}

if __name__ == "__main__":
    main(sys.argv[1:])
