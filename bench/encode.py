"""Reading texts of mixed lengths: our BERT against Hugging Face and onnxruntime, the same weights, a vector a text.

    python -m bench.encode               # CPU, or the GPU where there is one

We read batches as a loaded run does: similar lengths together, without padding. The peers read the texts as they come,
all in one batch padded to the longest, or one at a time. A vector is the mean of what stands at a text's tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertModel

from bench.harness import Comparison, clock, len_cores, race, report
from bench.peers import PAD, hugging_face_bert, our_bert
from regard.core.linear import pack
from regard.data.batch import pad
from regard.data.labelled import read_labelled
from regard.data.lengths import in_order
from regard.data.text import BadLines, find

VOCAB = 30_522
TOKENS = 4096  # in our batches, as in those of a loaded run
CELLS = {"cpu": [("mini", 64), ("base", 16)], "cuda": [("mini", 64), ("base", 64), ("base", 1024)]}  # size, texts
ROUNDS = 5
ONNX = find_spec("onnxruntime") is not None and not torch.cuda.is_available()  # its plain package has no GPU

Read = Callable[[Tensor, Tensor], Tensor]  # tokens, and which are real, (B, T) -> (B, T, dim)
Make = Callable[[int], Read]  # for a number of threads
Order = list[np.ndarray]  # which texts make up each batch
Run = Callable[[], Tensor]


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = [compare(*cell, device) for cell in CELLS[device]]
    counts = dict.fromkeys(count for _, count in CELLS[device])
    note = (
        "Random tokens, as many to a text as there are words and punctuation marks in the sentences of SST-2 and the "
        "pairs of RTE, half of each, plus [CLS] and [SEP]: "
        f"{'; '.join(map(spread, counts))}. BERT of {VOCAB:,} words, "
        f"equal weights in {'bf16' if device == 'cuda' else 'fp32'}; the vectors were checked to be the same. "
        f"Each engine at its best number of threads, {ROUNDS} rounds. "
        f"onnxruntime: {version('onnxruntime') if ONNX else 'left out'}."
    )
    report("encode", "Reading texts against Hugging Face and onnxruntime", note, found)


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
    given = texts(count)
    together, alone = [np.arange(count)], list(np.arange(count)[:, None])
    alike = list(in_order(np.array([len(text) for text in given]), tokens=TOKENS))
    mine = our_bert(size, VOCAB).eval()
    theirs = hugging_face_bert(mine).eval().bert
    theirs.pooler = None  # nobody asks for it
    with TemporaryDirectory() as scratch:
        peers = {"onnxruntime": onnx(theirs, Path(scratch))} if ONNX else {}
        kind = torch.bfloat16 if device == "cuda" else torch.float32
        peers["Hugging Face"] = hugging_face(theirs.to(device, kind))
        racing = {"regard": quickest(regard(pack(mine.to(device, kind))), given, alike, device)}
        for name, make in sorted(peers.items()):
            racing[f"{name}, padded"] = quickest(make, given, together, device)
            racing[f"{name}, one at a time"] = quickest(make, given, alone, device)
        check({name: run() for name, run in racing.items()}, 1e-4 if kind == torch.float32 else 0.1)
        engines = {name: counted(run, given) for name, run in racing.items()}
        return race(f"{size}, {count} texts", "real tokens/s", engines, rounds=ROUNDS, warm=1)


def check(vectors: dict[str, Tensor], within: float) -> None:
    for name, found in vectors.items():
        off = float((found - vectors["regard"]).abs().max())
        assert off <= within, f"{name} and regard disagree by {off}"


# ---- the engines


def regard(model: nn.Module) -> Make:
    return lambda threads: model


def hugging_face(model: BertModel) -> Make:
    return lambda threads: lambda tokens, real: model(tokens, attention_mask=real.long()).last_hidden_state


def onnx(model: BertModel, folder: Path) -> Make:
    """Exported once; the number of threads is a session's own."""
    import onnxruntime

    path = folder / "bert.onnx"
    tokens, real = (torch.ones(2, 7, dtype=torch.long) for _ in range(2))  # one tensor twice would be one input
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        Exported(model).eval(), (tokens, real), path,
        input_names=["tokens", "real"], dynamic_shapes=(axes, axes), dynamo=True, verbose=False,
    )  # fmt: skip

    def make(threads: int) -> Read:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda tokens, real: torch.from_numpy(
            session.run(None, {"tokens": tokens.numpy(), "real": real.long().numpy()})[0]
        )

    return make


class Exported(nn.Module):
    """Tensors in, a tensor out."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, real: Tensor) -> Tensor:
        return self.model(tokens, attention_mask=real).last_hidden_state


# ---- the work


def counted(run: Run, given: list[list[int]]) -> Callable[[], float]:
    def work() -> float:
        run()
        return float(sum(map(len, given)))

    return work


def quickest(make: Make, given: list[list[int]], order: Iterable[np.ndarray], device: str) -> Run:
    """With one thread or with all, whichever suits this engine best."""
    runs = [encoder(make(threads), threads, given, list(order), device) for threads in {1, len_cores()}]
    return min(runs, key=seconds)


def seconds(run: Run) -> float:
    run()
    before = clock()
    run()
    return clock() - before


def encoder(read: Read, threads: int, given: list[list[int]], order: Order, device: str) -> Run:
    """A vector for each text, in the order in which they came."""

    @torch.inference_mode()
    def run() -> Tensor:
        torch.set_num_threads(threads)
        found: dict[int, Tensor] = {}
        for places in order:
            tokens, real = (t.to(device) for t in pad([given[place] for place in places], PAD))
            hidden = read(tokens, real).float() * real[..., None]
            found.update(zip(places.tolist(), hidden.sum(1) / real.sum(1, keepdim=True), strict=True))
        return torch.stack([found[place] for place in range(len(given))])

    return run


if __name__ == "__main__":
    main()
