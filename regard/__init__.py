"""Regard: every system of the attention lectures on one attention core.

pipeline = regard.load("runs/demo");  pipeline("twenty-three")
with regard.watch(pipeline.model) as seen: ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.core.attention import Attention
    from regard.core.mask import Mask
    from regard.core.score import Score
    from regard.core.watch import silence, watch
    from regard.pipeline import load
    from regard.run import train
    from regard.view.notebook import show

__version__ = "0.1.0"
__all__ = ["Attention", "Mask", "Score", "load", "show", "silence", "train", "watch"]

_HOMES = {  # looked up when first used: importing regard imports no torch
    "Attention": "regard.core.attention",
    "Mask": "regard.core.mask",
    "Score": "regard.core.score",
    "load": "regard.pipeline",
    "show": "regard.view.notebook",
    "silence": "regard.core.watch",
    "train": "regard.run",
    "watch": "regard.core.watch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
