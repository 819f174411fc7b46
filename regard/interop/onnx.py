"""Export to ONNX: graphs that onnxruntime runs without Regard and without Python.

    reads       model.onnx     tokens, real, segments → hidden, logits …
    writes      model.onnx     tokens, past → logits, present
    does both   encoder.onnx   source, real → memory
                decoder.onnx   tokens, past, real, memory → logits, present

State goes in and comes out, as in `model.step`: `present` is the next call's `past`, which is empty before the first.
So a word costs the same however many came before it, and the one graph also reads a whole prompt or scores a whole
answer at once. Batch and lengths are free. A recurrent model goes word by word in a loop that no such graph can hold,
and of a TCN there is none yet.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.autoregressive import Autoregressive
from regard.core.state import KV, Memory, State
from regard.data.batch import pad
from regard.data.tokenizer import Tokenizers
from regard.errors import ConfigError, RegardError
from regard.interop.engine import WAVES, Check, Comparison, answer, describe, lengths, needed, new_folder, on_cpu, told
from regard.interop.engine import random_words as words
from regard.models.bert import Bert
from regard.models.gpt import GPT
from regard.models.tcn import TCN
from regard.models.transformer import Transformer
from regard.pipeline import Pipeline

ONE_FILE = 2**30  # bytes of weights beside which a graph still fits into the 2 GiB that its format can hold

Axes = dict[int, str]  # those that are free, and what they are called


def export_onnx(pipeline: Pipeline, folder: str | Path) -> Check:
    """Writes graphs, vocabularies and `regard.json` into a new folder, if onnxruntime gives what the model gives."""
    for module in ("onnx", "onnxscript", "onnxruntime"):
        needed(module, "onnx")
    model = on_cpu(pipeline.model)
    graphs = _graphs(model)
    with new_folder(Path(folder)) as beside:
        for name, graph in graphs.items():
            graph.write(beside / name)
        names = {name: {"inputs": list(graph.inputs), "outputs": list(graph.outputs)} for name, graph in graphs.items()}
        describe(beside, pipeline, marks=asdict(pipeline.tokenizers.target.marks), graphs=names)
        return _check(model, pipeline.tokenizers, {name: Session(beside / name) for name in graphs})


# ---- what is exported: modules that take tensors and give tensors


class Read(nn.Module):
    """What a BERT makes of a text, and what it tells of it."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, real: Tensor, segments: Tensor | None = None) -> list[Tensor]:
        return list(told(self.model, self.model(tokens, real, segments)).values())


class Classify(nn.Module):
    """What a GPT tells of a text from its last token."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, last: Tensor) -> Tensor:
        hidden, _ = self.model(None, None, tokens)
        logits: Tensor = self.model.labels(self.model.summary(hidden, last))
        return logits


class Start(nn.Module):
    """Keys and values of a source, for each block of the decoder."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, real: Tensor) -> list[Tensor]:
        return _flat(self.model.start(source, real).memory.keys)


class Step(nn.Module):
    """Reads tokens after those that are past, (B, T) -> (B, T, V), and gives back what the next call wants."""

    def __init__(self, model: Autoregressive) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, past: list[Tensor], real: Tensor | None = None, memory: list[Tensor] | None = None
    ) -> list[Tensor]:
        source = None if memory is None else Memory(_pairs(memory), real)
        hidden, state = self.model.states(tokens, State(source, _pairs(past), past[0].shape[2]))
        return [self.model.head.logits(hidden), *_flat(state.past)]


def _flat(seen: Sequence[KV]) -> list[Tensor]:
    return [tensor for kv in seen for tensor in (kv.keys, kv.values)]


def _pairs(tensors: Sequence[Tensor]) -> list[KV]:
    return [KV.of(k, v) for k, v in zip(tensors[::2], tensors[1::2], strict=True)]


# ---- graphs


@dataclass(frozen=True)
class Graph:
    """A module with an example of each input. What is free has a size of its own there, and none is one or zero."""

    module: nn.Module
    arguments: tuple[Any, ...]
    free: tuple[Any, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def write(self, path: Path) -> None:
        weights = sum(t.numel() * t.element_size() for t in self.module.state_dict().values())
        try:
            with _quietly():
                torch.onnx.export(
                    self.module.eval(), self.arguments, path, dynamo=True, verbose=False,
                    input_names=self.inputs, output_names=self.outputs, dynamic_shapes=self.free,
                    external_data=weights > ONE_FILE,
                )  # fmt: skip
        except torch.onnx.errors.OnnxExporterError as error:
            why = " ".join(str(error.__cause__ or error).split())[:200]
            raise RegardError(
                f"{path.name}: the exporter of torch {torch.__version__} cannot draw this graph ({why}); "
                "try another version of torch"
            ) from error


def _graphs(model: nn.Module) -> dict[str, Graph]:
    if isinstance(model, Bert):
        return {"model.onnx": _reading(model)}
    if isinstance(model, GPT):
        if model.config.inputs is not None:
            raise ConfigError("inputs: our ONNX graphs read tokens, and this gpt reads numbers; it has no way out yet")
        return {"model.onnx": _writing(model) if model.config.labels is None else _classifying(model)}
    if isinstance(model, Transformer):
        if model.config.score == "location":
            raise ConfigError(
                "score: 'location' has rows for some positions, and a graph cannot ask how many it needs; "
                "export a model with another score"
            )
        if model.longest is None:
            for positions in (model.positions, model.source_positions):
                positions(0, WAVES)  # the table goes along as it is
        return {"encoder.onnx": _starting(model), "decoder.onnx": _writing(model)}
    if isinstance(model, TCN):
        raise ConfigError("a TCN has no ONNX graph of ours yet; export a bert, a gpt or a transformer")
    raise ConfigError(
        f"a {type(model).__name__} goes from word to word in a loop, which no ONNX graph of ours holds; "
        "export a bert, a gpt or a transformer"
    )


def _reading(model: Bert) -> Graph:
    names = ("tokens", "real", "segments") if model.segments is not None else ("tokens", "real")
    outputs = tuple(told(model, torch.zeros(1, 1, model.config.dim)))
    free = tuple({0: "batch", 1: "length"} for _ in names)
    return Graph(Read(model), (_tokens(), _real(), _tokens())[: len(names)], free, names, outputs)


def _classifying(model: GPT) -> Graph:
    free: tuple[Axes, ...] = ({0: "batch", 1: "length"}, {0: "batch"})
    return Graph(Classify(model), (_tokens(), torch.tensor([2, 1])), free, ("tokens", "last"), ("logits",))


def _starting(model: Transformer) -> Graph:
    free: tuple[Axes, ...] = ({0: "batch", 1: "source"}, {0: "batch", 1: "source"})
    return Graph(Start(model), (_tokens(), _real()), free, ("source", "real"), _names("memory", len(model.decoder)))


def _writing(model: GPT | Transformer) -> Graph:
    layers = len(model.decoder if isinstance(model, Transformer) else model.blocks)
    past, present = _names("past", layers), _names("present", layers)
    axes: tuple[Any, ...] = ({0: "batch", 1: "length"}, [{0: "batch", 2: "past"} for _ in past])
    inputs, arguments = ("tokens", *past), (_tokens(), _nothing(model, 2, 2))
    if isinstance(model, GPT):
        return Graph(Step(model), arguments, axes, inputs, ("logits", *present))
    memory = _names("memory", layers)
    return Graph(
        Step(model), (*arguments, _real(4), _nothing(model, 2, 4)),
        (*axes, {0: "batch", 1: "source"}, [{0: "batch", 2: "source"} for _ in memory]),
        (*inputs, "real", *memory), ("logits", *present),
    )  # fmt: skip


def _tokens() -> Tensor:
    """A tensor that is given twice is one input to the exporter, hence a new one each time."""
    return torch.zeros(2, 3, dtype=torch.long)


def _real(length: int = 3) -> Tensor:
    return torch.arange(length) < torch.tensor([[length], [2]])


def _names(what: str, layers: int) -> tuple[str, ...]:
    return tuple(f"{what}.{layer}.{part}" for layer in range(layers) for part in ("key", "value"))


def _nothing(model: GPT | Transformer, rows: int, length: int = 0) -> list[Tensor]:
    """Keys and values of `length` tokens that say nothing; of none, where a text begins."""
    config, layers = model.config, len(model.decoder if isinstance(model, Transformer) else model.blocks)
    return [torch.zeros(rows, config.heads, length, config.dim // config.heads) for _ in range(2 * layers)]


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter warns of its own parts, which nobody here can change."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


# ---- the check


class Session:
    """A graph in onnxruntime: tensors in, tensors out, in the order of their names."""

    def __init__(self, path: Path) -> None:
        runtime = needed("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.inner = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [given.name for given in self.inner.get_inputs()]
        self.engine = f"onnxruntime {runtime.__version__}"

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        given = dict(zip(self.names, (tensor.numpy() for tensor in tensors), strict=True))
        return [torch.from_numpy(found) for found in self.inner.run(None, given)]


@torch.inference_mode()
def _check(model: nn.Module, tokenizers: Tokenizers, sessions: dict[str, Session]) -> Check:
    found, dice = Comparison(), torch.Generator().manual_seed(0)
    engine = next(iter(sessions.values())).engine
    for rows in lengths(getattr(model, "longest", None)):
        texts = words(tokenizers.source, rows, dice)
        tokens, real = pad(texts, texts[0][0])  # padding may be any word: nobody looks at it
        found.shapes.append(tuple(tokens.shape))
        if isinstance(model, Bert):
            _same_reading(found, model, sessions["model.onnx"], tokens, real)
        elif isinstance(model, Transformer):
            start = torch.full((len(tokens), 1), tokenizers.target.marks.begin)
            memory = sessions["encoder.onnx"](tokens, real)
            _same_writing(found, model, sessions["decoder.onnx"], start, model.start(tokens, real), [real, *memory])
        elif isinstance(model, GPT) and model.config.labels is None:
            _same_writing(found, model, sessions["model.onnx"], tokens, model.start(), [])
        elif isinstance(model, GPT):
            last = real.sum(1) - 1
            found.numbers(Classify(model)(tokens, last), *sessions["model.onnx"](tokens, last))
    return found.check(engine)


def _same_reading(found: Comparison, model: Bert, session: Session, tokens: Tensor, real: Tensor) -> None:
    segments = (
        [] if model.segments is None else [torch.arange(tokens.shape[1]).expand_as(tokens) % model.config.segments]
    )
    here = told(model, model(tokens, real, *segments)).values()
    for ours, theirs in zip(here, session(tokens, real, *segments), strict=True):
        at_tokens = ours.shape[:2] == real.shape and ours.ndim == 3  # what stands at padding means nothing
        found.numbers(ours[real], theirs[real]) if at_tokens else found.numbers(ours, theirs)


def _same_writing(
    found: Comparison, model: GPT | Transformer, session: Session, tokens: Tensor, state: State, source: list[Tensor]
) -> None:
    """Both go on with the words that are likeliest here."""
    past = _nothing(model, len(tokens))
    for _ in range(answer(model.longest)):
        hidden, state = model.states(tokens, state)
        here = model.head.logits(hidden)
        there, *past = session(tokens, *past, *source)
        found.numbers(here, there)
        tokens = here[:, -1:].argmax(-1)
        found.tokens(tokens.flatten().tolist(), there[:, -1].argmax(-1).tolist())
