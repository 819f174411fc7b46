"""How a model tells where in the sequence a token stands: the vectors it adds, position by position."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.core.position import Halves, Learned, Sinusoidal

SHOWN = 96  # positions
KINDS: dict[type[nn.Module], str] = {Sinusoidal: "sinusoidal", Halves: "halves", Learned: "learned"}


@torch.inference_mode()
def positions(model: nn.Module) -> list[dict[str, Any]]:
    """The tables of a model; none where it reads in order anyway, as recurrent networks do."""
    found = [(name, part) for name, part in model.named_modules() if type(part) in KINDS]
    return [{"name": name, "kind": KINDS[type(part)], **_table(part)} for name, part in found]


def _table(part: nn.Module) -> dict[str, Any]:
    shown = SHOWN
    if isinstance(part, Learned):
        shown = min(SHOWN, part.table.num_embeddings - part.offset)
    table = part(0, shown).double().cpu()
    return {"rows": shown, "dim": table.shape[1], "table": table.numpy().round(7).tolist()}
