"""Marian (Junczys-Dowmunt et al. 2018), which made the OPUS-MT models, as Hugging Face writes it: the paper's
Transformer, with all sines of a position before all cosines.
"""

from __future__ import annotations

import math

import torch

from regard.core.position import POSITIONS
from regard.errors import CheckpointError
from regard.interop.bart import (
    ACTIVATIONS,
    IDLE,
    IDS,
    KEYS,
    MUST,
    SIDES,
    alike,
    apart,
    blocks,
    fits_both,
    head,
    restore,
)
from regard.interop.family import Architecture, Family, Held, Key, Row, Settings
from regard.models.transformer import Config
from regard.weights import Tensors

WAVES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
MOST = 2**26  # numbers in a table of waves
NEAR = 1e-4  # a table of waves that was computed elsewhere


def body(config: Config, prefix: str) -> list[Row]:
    if config.tied in ("all", "words"):
        return [Row("model.shared.weight", ("words.weight",)), *blocks(config)]
    return [*apart(config), *blocks(config)]


def twins(config: Config, prefix: str) -> dict[str, str]:
    joint = config.tied in ("all", "words")
    names = [*(SIDES if joint else ()), *(["lm_head.weight"] if config.tied in ("all", "target") else [])]
    return dict.fromkeys(names, "model.shared.weight" if joint else SIDES[1])


def refine(ours: Settings, theirs: Settings, held: Held) -> Settings:
    joint, tied = theirs.get("share_encoder_decoder_embeddings", True), theirs.get("tie_word_embeddings", True)
    found = {**ours, **alike(ours, theirs, held), "positions": _waves(held)}
    if joint and (tied or SIDES[0] not in held.names):
        return {**found, "tied": "all" if tied else "words"}
    source = ours["vocab"]
    target = source if joint else theirs.get("decoder_vocab_size") or source
    return {**found, "tied": "target" if tied else "none", "source_vocab": source, "vocab": target}


def _waves(held: Held) -> str:
    """A file may have the table of positions, and then it may be the paper's."""
    kinds = {_kind(held, name) for name in WAVES if name in held.names} or {"halves"}
    if len(kinds) > 1:
        raise CheckpointError(f"{WAVES[0]!r} and {WAVES[1]!r} differ; a Marian has the same waves on both sides")
    return kinds.pop()


def _kind(held: Held, name: str) -> str:
    if math.prod(held.entries[name].shape) > MOST:
        raise CheckpointError(f"{name!r} is a table of more than {MOST} numbers; leave it out, and it is computed")
    table = held.read(name)
    for kind in ("halves", "sinusoidal"):
        if table.ndim == 2 and table.numel() and torch.allclose(_draw(kind, *table.shape), table, rtol=0, atol=NEAR):
            return kind
    raise CheckpointError(f"{name!r} holds no waves of sines and cosines; a Marian with learned positions is not known")


def _draw(kind: str, length: int, dim: int) -> torch.Tensor:
    found: torch.Tensor = POSITIONS[kind](dim, 1)(0, length)
    return found


def tables(config: Config) -> Tensors:
    """Halves are drawn by whoever reads the folder; the paper's waves must be in it."""
    if config.positions == "halves":
        return {}
    return {name: _draw(config.positions, config.context, config.dim).clone() for name in WAVES}


def restored(config: Config) -> Settings:
    joint = config.tied in ("all", "words")
    return {
        **restore(config),
        "share_encoder_decoder_embeddings": joint,
        "vocab_size": config.source_vocab or config.vocab,
        "decoder_vocab_size": config.vocab,
    }


def fits(config: Config) -> str | None:
    for name, value in {"embedding_norm": False, "offset": 0, "source_positions": "shared"}.items():
        if (found := getattr(config, name)) != value:
            return f"model.{name}: a Marian has {value!r}, but it is {found!r}; export it to ONNX"
    return fits_both(config)


FAMILY = Family(
    kind="marian",
    system="transformer",
    prefix="model.",
    architectures={"MarianMTModel": Architecture("rewrite", head=head)},
    keys={**KEYS, "vocab_size": Key("vocab", 58101)},
    activation="activation_function",
    activations=ACTIVATIONS,
    must={**MUST, "normalize_embedding": (False,), "static_position_embeddings": (True,)},
    idle=IDLE | {"extra_pos_embeddings"},
    body=body,
    buffers=WAVES,
    unused=("model.shared.weight",),  # where each side has words of its own
    ids=IDS,
    twins=twins,
    refine=refine,
    restore=restored,
    fits=fits,
    tables=tables,
)
