"""How near a model of ours is to the folder that it came from, or went to: layer by layer, and in what it tells.

`transformers` reads the folder, both read the same random tokens, and wherever a token is real the two are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from regard.errors import RegardError
from regard.interop.engine import on_cpu, told
from regard.interop.family import architecture_for
from regard.interop.files import read_config
from regard.interop.hf import Imported, family_of
from regard.pipeline import Pipeline, load

ROWS, LENGTH, ANSWER = 4, 24, 9  # of the batch that both read, and of the answer


@dataclass(frozen=True)
class Difference:
    """The largest in one place, and the largest number there."""

    where: str
    difference: float
    scale: float


@dataclass(frozen=True)
class Report:
    against: str
    """What was compared with, or why nothing was."""
    differences: tuple[Difference, ...] = ()

    @property
    def largest(self) -> float:
        return max((one.difference for one in self.differences), default=0.0)

    def __str__(self) -> str:
        if not self.differences:
            return self.against
        last = self.differences[-1]
        layers = max((one.difference for one in self.differences[:-1]), default=0.0)
        return f"against {self.against}: {layers:.1e} in a layer at most, {last.difference:.1e} in the {last.where}"

    def table(self) -> Table:
        table = Table(box=None)
        table.add_column("after")
        table.add_column("largest difference", justify="right")
        table.add_column("of", justify="right")
        for one in self.differences:
            table.add_row(one.where, f"{one.difference:.1e}", f"{one.scale:.3g}")
        return table


@dataclass(frozen=True)
class Batch:
    """Random tokens, with padding in all rows but the first."""

    tokens: Tensor
    real: Tensor
    answer: Tensor
    segments: Tensor | None = None

    @classmethod
    def of(cls, config: Any, pad: int, seed: int = 0) -> Batch:
        dice = torch.Generator().manual_seed(seed)
        length = min(LENGTH, config.longest or LENGTH)
        real = torch.arange(length) < torch.linspace(length, 1, ROWS).long()[:, None]
        vocab, source = config.vocab, getattr(config, "source_vocab", None) or config.vocab
        tokens = _other_than(pad, torch.randint(source, (ROWS, length), generator=dice), source)
        answer = _other_than(pad, torch.randint(vocab, (ROWS, min(ANSWER, length)), generator=dice), vocab)
        kinds = getattr(config, "segments", 0)
        segments = torch.randint(kinds, real.shape, generator=dice) if kinds else None
        return cls(tokens.masked_fill(~real, min(pad, source - 1)), real, answer, segments)


def report(run: str | Path | Pipeline | Imported, folder: str | Path) -> Report:
    """Of a run and a Hugging Face folder that should be the same model.

    They are asked for the architecture that ours is: a folder may hold more, or less, than its config.json says.
    """
    run = load(run, device="cpu") if isinstance(run, str | Path) else run
    folder = Path(folder)
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        return Report("nothing was compared, since transformers is not there; write pip install transformers")
    config = read_config(folder)
    architecture = architecture_for(family_of(config), run.recipe.task.name, run.recipe.model)  # type: ignore[arg-type]
    try:
        theirs = _read_theirs(transformers, architecture, folder)
    except Exception as error:  # whatever transformers makes of the folder, the work is done
        why = " ".join(str(error).split())[:200]
        return Report(f"nothing was compared, since transformers cannot read it ({type(error).__name__}: {why})")
    pad = config.get("pad_token_id")
    batch = Batch.of(run.recipe.model, pad if isinstance(pad, int) else 0)
    model = on_cpu(run.model)
    with torch.inference_mode():
        ours, wanted = READ[run.recipe.system](model, batch), ASK[run.recipe.system](theirs, batch)
    _check_places(ours, wanted)
    found = tuple(_compare(where, here, wanted[where]) for where, here in ours.items() if where in wanted)
    return Report(f"{architecture} of transformers {transformers.__version__}", found)


def _check_places(ours: Said, wanted: Said) -> None:
    """Where a file has no pooler, theirs makes a fresh one."""
    if odd := sorted((ours.keys() ^ wanted.keys()) - {"summary"}):
        raise RegardError(
            f"{odd[0]} is {'here' if odd[0] in ours else 'there'} alone; name the folder of the same model"
        )


def _compare(where: str, here: Tensor, there: Tensor) -> Difference:
    if here.shape != there.shape:
        raise RegardError(f"{where} has the shape {list(here.shape)} here and {list(there.shape)} there")
    return Difference(where, float((here - there).abs().max()), float(there.abs().max()))


def _read_theirs(transformers: Any, architecture: str, folder: Path) -> Any:
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        kind = getattr(transformers, architecture)
        return kind.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()


def _other_than(pad: int, tokens: Tensor, vocab: int) -> Tensor:
    """A token that means padding would be padding there."""
    return torch.where(tokens == pad, (tokens + 1) % vocab, tokens)


# ---- what ours says, and what theirs says, under the same names

Said = dict[str, Tensor]


def _read_encoder(model: Any, batch: Batch) -> Said:
    with _kept(model.encoder) as layers:
        hidden = model(batch.tokens, batch.real, batch.segments)
    packed = len(layers[0]) == 1 and not batch.real.all()
    rows = [x[0] if packed else x[batch.real] for x in layers]
    _, *said = told(model, hidden).items()  # hidden is the last layer's
    last = {name: x[batch.real] if x.ndim == 3 else x for name, x in reversed(said)}  # a report ends with the logits
    return {**_named("encoder", rows), **last}


def _ask_encoder(theirs: Any, batch: Batch) -> Said:
    segments = {} if batch.segments is None else {"token_type_ids": batch.segments}
    found = theirs(batch.tokens, attention_mask=batch.real.long(), output_hidden_states=True, **segments)
    layers = _named("encoder", [x[batch.real] for x in found.hidden_states[1:]])
    if "start_logits" in found:
        return {**layers, "logits": torch.stack([found.start_logits, found.end_logits], -1)[batch.real]}
    if "prediction_logits" in found:
        return {**layers, "next": found.seq_relationship_logits, "logits": found.prediction_logits[batch.real]}
    if "logits" in found:
        return {**layers, "logits": found.logits[batch.real] if found.logits.ndim == 3 else found.logits}
    return layers if found.get("pooler_output") is None else {**layers, "summary": found.pooler_output}


def _read_writer(model: Any, batch: Batch) -> Said:
    with _kept(model.blocks) as layers:
        hidden, _ = model(None, None, batch.tokens)
    rows = [x[batch.real] for x in (*layers[:-1], hidden)]  # theirs has the last norm in the last layer
    return {**_named("blocks", rows), "logits": model.head.logits(hidden[batch.real])}


def _ask_writer(theirs: Any, batch: Batch) -> Said:
    found = theirs(batch.tokens, attention_mask=batch.real.long(), output_hidden_states=True)
    rows = [x[batch.real] for x in found.hidden_states[1:]]
    return {**_named("blocks", rows), "logits": found.logits[batch.real]}


def _read_rewriter(model: Any, batch: Batch) -> Said:
    with _kept(model.encoder) as source, _kept(model.decoder) as target:
        hidden, _ = model(batch.tokens, batch.real, batch.answer)
    source = [x[batch.real] for x in source]
    return {**_named("encoder", source), **_named("decoder", target), "logits": model.head.logits(hidden)}


def _ask_rewriter(theirs: Any, batch: Batch) -> Said:
    found = theirs(
        input_ids=batch.tokens, attention_mask=batch.real.long(), decoder_input_ids=batch.answer,
        output_hidden_states=True,
    )  # fmt: skip
    source = [x[batch.real] for x in found.encoder_hidden_states[1:]]
    return {**_named("encoder", source), **_named("decoder", found.decoder_hidden_states[1:]), "logits": found.logits}


READ = {"bert": _read_encoder, "gpt": _read_writer, "transformer": _read_rewriter}
ASK = {"bert": _ask_encoder, "gpt": _ask_writer, "transformer": _ask_rewriter}


def _named(stack: str, layers: Iterable[Tensor]) -> Said:
    return {f"{stack}.{i}": x for i, x in enumerate(layers)}


@contextmanager
def _kept(blocks: nn.ModuleList) -> Iterator[list[Tensor]]:
    """What each block gives, while it lasts."""
    found: list[Tensor] = []
    hooks = [block.register_forward_hook(lambda _, __, given: found.append(given[0])) for block in blocks]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
