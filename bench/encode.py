"""Reading texts of mixed lengths: our BERT against Hugging Face, the same weights, a vector a text.

    python -m bench.encode               # CPU, or the GPU where there is one

We read batches as a loaded run does: similar lengths together, without padding. The peer reads the texts as they come,
all in one batch padded to the longest, or sorted by length in small batches, or one at a time. A vector is the mean of
what stands at a text's tokens. Against onnxruntime: bench/fast.py.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench import apart
from bench.apart import Run
from bench.harness import Comparison, raced, refuse_others, report
from bench.peers import PAD, hugging_face_bert, our_bert, ready
from regard.data.batch import pad
from regard.data.labelled import read_labelled
from regard.data.lengths import in_order
from regard.data.text import BadLines, find
from regard.fast import prepare

VOCAB = 30_522
TOKENS = 4096  # in our batches, as in those of a loaded run
CELLS = {"cpu": [("mini", 64), ("base", 4)], "cuda": [("mini", 64), ("base", 64), ("base", 1024)]}  # size, texts
ROUNDS = 6
ORDERS = "padded", "by length, 8 at a time", "one at a time"  # of the peer

Read = Callable[[Tensor, Tensor], Tensor]  # tokens, and which are real, (B, T) -> (B, T, dim)
Order = list[np.ndarray]  # which texts make up each batch


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = [compare(*cell, device) for cell in CELLS[device]]
    counts = dict.fromkeys(count for _, count in CELLS[device])
    note = (
        "Random tokens, as many to a text as there are words and punctuation marks in the sentences of SST-2 and the "
        "pairs of RTE, half of each, plus [CLS] and [SEP]: "
        f"{'; '.join(map(spread, counts))}. BERT of {VOCAB:,} words, "
        f"equal weights in {'bf16' if device == 'cuda' else 'fp32'}, by PyTorch on both sides, without the accelerator "
        "(bench/fast.py has it); the vectors were checked to be the same. "
        f"Each engine in processes of its own, at its best number of threads (in brackets), {ROUNDS} rounds."
    )
    report("encode", "Reading texts against Hugging Face", note, found)


def spread(count: int) -> str:
    lengths = sorted(map(len, texts(count)))
    return f"of {count} texts, {lengths[0]} to {lengths[-1]}, on average {sum(lengths) / count:.0f}"


def texts(count: int) -> list[list[int]]:
    """Any tokens, but as many as real texts have, in a random order."""
    dice = random.Random(0)
    found = []
    for name, columns in (("SST-2/dev", ("sentence",)), ("RTE/train", ("sentence1", "sentence2"))):
        examples = read_labelled([find(f"glue/{name}.tsv")], texts=columns, label="label", bad=BadLines())
        for example in dice.sample(list(examples), count // 2):
            words = sum(len(re.findall(r"\w+|[^\w\s]", text)) + 1 for text in example.texts)
            found.append([dice.randrange(4, VOCAB) for _ in range(1 + words)])
    dice.shuffle(found)
    return found


def compare(size: str, count: int, device: str) -> Comparison:
    tokens = sum(map(len, texts(count)))
    with TemporaryDirectory() as scratch, ExitStack() as open_engines:
        paths = save(our_bert(size, VOCAB).eval(), Path(scratch))

        def able(engine: str, order: str) -> dict[str, Run]:
            return {threads: partial(one, order) for threads, one in running[engine].items()}

        running = {
            engine: open_engines.enter_context(apart.engines(reader, paths[engine], engine, count, device))
            for engine in ("regard", "Hugging Face")
        }
        racing = {"regard": able("regard", "alike")}
        racing |= {f"Hugging Face, {order}": able("Hugging Face", order) for order in ORDERS}
        check({name: apart.any_of(ways)() for name, ways in racing.items()}, 1e-4 if device == "cpu" else 0.1)
        return apart.compare(f"{size}, {count} texts", tokens, racing, unit="real tokens/s", rounds=ROUNDS)


def check(vectors: dict[str, Tensor], within: float) -> None:
    first, *others = vectors
    for name in others:
        off = float((vectors[name] - vectors[first]).abs().max())
        assert off <= within, f"{name} and {first} disagree by {off}"


# ---- the engines, each in a process of its own


def save(model: nn.Module, folder: Path, *, onnx: bool = False) -> dict[str, Path]:
    """For every engine the same weights."""
    theirs = hugging_face_bert(model).eval().bert
    theirs.pooler = None  # nobody asks for it
    paths = {name: folder / f"{name}.pt" for name in ("regard", "Hugging Face")} | {"onnxruntime": folder / "bert.onnx"}
    torch.save(model, paths["regard"])
    torch.save(theirs, paths["Hugging Face"])
    if onnx:
        tokens, real = (torch.ones(2, 7, dtype=torch.long) for _ in range(2))  # one tensor twice would be one input
        axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
        torch.onnx.export(
            Exported(theirs).eval(), (tokens, real), paths["onnxruntime"],
            input_names=["tokens", "real"], dynamic_shapes=(axes, axes), dynamo=True, verbose=False,
        )  # fmt: skip
    return paths


class Exported(nn.Module):
    """Tensors in, a tensor out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        return self.model(tokens, attention_mask=real).last_hidden_state


def reader(threads: int, path: Path, engine: str, count: int, device: str) -> Run:
    """Reads the texts in an order that is asked for."""
    given = texts(count)
    orders = {
        "padded": [np.arange(count)],
        "one at a time": list(np.arange(count)[:, None]),
        "by length, 8 at a time": np.array_split(np.argsort([len(text) for text in given]), -(-count // 8)),
        "alike": list(in_order(np.array([len(text) for text in given]), tokens=TOKENS)),
    }
    read = ENGINES[engine](path, threads, device)
    return lambda order: encoder(read, given, orders[order], device)


def regard(path: Path, threads: int, device: str) -> Read:
    return ready(_loaded(path, device))


def accelerated(arithmetic: str, path: Path, threads: int, device: str) -> Read:
    return prepare(_loaded(path, device), arithmetic)


def hugging_face(path: Path, threads: int, device: str) -> Read:
    model = _loaded(path, device)
    return lambda tokens, real: model(tokens, attention_mask=real.long()).last_hidden_state


def onnxruntime(path: Path, threads: int, device: str) -> Read:
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda tokens, real: torch.from_numpy(
        session.run(None, {"tokens": tokens.numpy(), "real": real.long().numpy()})[0]
    )


ENGINES: dict[str, Callable[[Path, int, str], Read]] = {
    "regard": regard,
    "regard fp32": partial(accelerated, "fp32"),
    "regard int8": partial(accelerated, "int8"),
    "Hugging Face": hugging_face,
    "onnxruntime": onnxruntime,
}


def _loaded(path: Path, device: str) -> Any:
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    return torch.load(path, weights_only=False).to(device, kind).eval()


# ---- the work


@torch.inference_mode()
def encoder(read: Read, given: list[list[int]], order: Order, device: str) -> Tensor:
    """A vector for each text, in the order in which they came."""
    found: dict[int, Tensor] = {}
    for places in order:
        tokens, real = (t.to(device) for t in pad([given[place] for place in places], PAD))
        hidden = read(tokens, real).float() * real[..., None]
        found.update(zip(places.tolist(), hidden.sum(1) / real.sum(1, keepdim=True), strict=True))
    return torch.stack([found[place] for place in range(len(given))]).cpu()


if __name__ == "__main__":
    raced(main, sys.argv[1:])
