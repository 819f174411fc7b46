"""The accelerator in int8 against CTranslate2 and onnxruntime in int8: the same weights, the same work.

    python -m bench.fast                 # all of it
    python -m bench.fast translate gpt2  # some of it: translate, gpt2, encode

Every engine works in processes of its own, with one thread or with all cores, whichever is quicker at a piece of work:
two pools of threads in one process would wait for each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bench import peers
from bench.harness import Comparison, clock, len_cores, race, report

LENGTH = 30  # tokens of a source and of an answer
BOS, EOS, PAD = 1, 2, 0
SIZES = {"small": 8_000, "base": 32_000}  # and their vocabulary
PROMPT, WRITTEN = 32, 64  # tokens of GPT-2
TEXTS = 64
ROUNDS = 9

Run = Callable[..., Any]
Make = Callable[..., Run]  # of a number of threads and more, called in the engine's own process


def main() -> None:
    wanted = sys.argv[1:] or list(COMPARISONS)
    with TemporaryDirectory() as scratch:
        found = [each for name in wanted for each in COMPARISONS[name](Path(scratch))]
    note = (
        f"Translation: {LENGTH} tokens out, sources of {LENGTH} tokens. GPT-2 of 124 million parameters, batch 1: "
        f"{WRITTEN} tokens after {PROMPT}. Reading: {TEXTS} texts of mixed lengths (see bench/encode.py), with an "
        "encoder of 6 layers, 384 wide; onnxruntime reads them one at a time, which is several times as quick as one "
        "padded batch. Random weights, equal on both sides, quantised by each engine itself. Each engine in processes "
        f"of its own, with one thread or {len_cores()}, whichever is quicker. CTranslate2 {version('ctranslate2')}, "
        f"onnxruntime {version('onnxruntime')}."
    )
    report("fast", "The accelerator against CTranslate2 and onnxruntime", note, found)


# ---- an engine in a process of its own


class Engine:
    """Does its work whenever it is told to."""

    def __init__(self, make: Make, threads: int, *given: Any) -> None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # a child reads it before it makes its threads
        context = get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, threads, given), daemon=True)
        self.process.start()

    def __call__(self, *asked: Any) -> Any:
        self.line.send(asked)
        return self.line.recv()


def _serve(line: Connection, make: Make, threads: int, given: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    run = make(threads, *given)
    while True:
        line.send(run(*line.recv()))


@contextmanager
def engines(make: Make, *given: Any) -> Iterator[list[Engine]]:
    """One for each number of threads."""
    found = [Engine(make, threads, *given) for threads in sorted({1, len_cores()})]
    try:
        yield found
    finally:
        for engine in found:
            engine.process.terminate()
            engine.process.join()


def compare(name: str, tokens: int, able: dict[str, list[Run]]) -> Comparison:
    """Of each engine the quickest; the first is ours."""
    best = {engine: min(runs, key=_seconds) for engine, runs in able.items()}

    def counted(run: Run) -> Callable[[], float]:
        def work() -> float:
            run()
            return float(tokens)

        return work

    found = race(name, "tokens/s", {engine: counted(run) for engine, run in best.items()}, rounds=ROUNDS, warm=1)
    print(name, {engine: round(found.rate(engine)) for engine in best}, file=sys.stderr)
    return found


def _seconds(run: Run) -> float:
    run()
    times = []
    for _ in range(3):
        before = clock()
        run()
        times.append(clock() - before)
    return min(times)


# ---- translation


def translate(scratch: Path) -> list[Comparison]:
    found = []
    for size, vocab in SIZES.items():
        model = peers.ours(size, vocab).eval()
        torch.save(model, scratch / f"{size}.pt")
        save_for_ctranslate2(model, scratch / size)
        with engines(ours, scratch / f"{size}.pt") as mine, engines(theirs, scratch / size) as peer:
            for batch, width in ((1, 1), (1, 4), (32, 1), (32, 4)):
                repeat = 8 if size == "small" and batch == 1 else 1  # a few milliseconds are too few to be measured
                asked = sources(vocab, batch), width, repeat
                able = {
                    name: [partial(engine, *asked) for engine in some]
                    for name, some in (("regard int8", mine), ("CTranslate2 int8", peer))
                }
                found.append(compare(f"{size}, batch {batch}, beam {width}", batch * LENGTH * repeat, able))
    return found


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


def writer_of(path: Path) -> Any:
    from regard.fast.writer import Writer

    return Writer(torch.load(path, weights_only=False).eval(), whole=True)


def ours(threads: int, path: Path) -> Run:
    writer = writer_of(path)

    def run(source: torch.Tensor, width: int, repeat: int) -> list[list[int]]:
        prompt = torch.full((len(source), 1), BOS)
        for _ in range(repeat):
            found = writer(source, None, prompt, eos=EOS, limit=LENGTH, keep=width, shortest=LENGTH)
        return [list(best[0].tokens) for best in found]

    return run


def theirs(threads: int, folder: Path) -> Run:
    import ctranslate2

    engine = ctranslate2.Translator(str(folder), compute_type="int8", intra_threads=threads, inter_threads=1)

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
        return [compare("GPT-2 124M, batch 1", WRITTEN, {"regard int8": [*mine], "CTranslate2 int8": [*peer]})]


def prompt() -> torch.Tensor:
    return torch.randint(4, 50_000, (1, PROMPT), generator=torch.Generator().manual_seed(1))


def our_gpt2(threads: int, path: Path) -> Run:
    writer = writer_of(path)
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

    from bench.encode import VOCAB, onnx, texts
    from regard.models import bert

    torch.manual_seed(0)
    model = bert.Bert(bert.Config(vocab=VOCAB, dim=384, heads=12, layers=6, hidden=1536, head="pretrain")).eval()
    torch.save(model, scratch / "bert.pt")
    twin = peers.hugging_face_bert(model).eval().bert
    twin.pooler = None  # nobody asks for it
    onnx(twin, scratch)
    quantize_dynamic(scratch / "bert.onnx", scratch / "int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    tokens = sum(map(len, texts(TEXTS)))
    with (
        engines(our_encoder, scratch / "bert.pt", "fp32") as floats,
        engines(our_encoder, scratch / "bert.pt", "int8") as whole,
        engines(their_encoder, scratch / "bert.onnx") as their_floats,
        engines(their_encoder, scratch / "int8.onnx") as their_whole,
    ):
        peer = {"onnxruntime fp32": [*their_floats], "onnxruntime int8": [*their_whole]}
        return [
            compare(f"reading {TEXTS} texts, int8", tokens, {"regard int8": [*whole], **peer}),
            compare(f"reading {TEXTS} texts, fp32", tokens, {"regard fp32": [*floats], **peer}),
        ]


def our_encoder(threads: int, path: Path, arithmetic: str) -> Run:
    from bench.encode import TOKENS, encoder, texts
    from regard.data.lengths import in_order
    from regard.fast import prepare

    given = texts(TEXTS)
    alike = list(in_order(np.array([len(text) for text in given]), tokens=TOKENS))
    model = prepare(torch.load(path, weights_only=False).eval(), arithmetic)
    return encoder(model, threads, given, alike, "cpu")


def their_encoder(threads: int, path: Path) -> Run:
    import onnxruntime

    from bench.encode import encoder, texts

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def read(tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(session.run(None, {"tokens": tokens.numpy(), "real": real.long().numpy()})[0])

    return encoder(read, threads, texts(TEXTS), list(np.arange(TEXTS)[:, None]), "cpu")


COMPARISONS: dict[str, Callable[[Path], list[Comparison]]] = {"translate": translate, "gpt2": gpt2, "encode": encode}

if __name__ == "__main__":
    main()
