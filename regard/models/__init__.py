"""One file per system. A registry is a dict that one can read; a system's file is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.config import ModelConfig
from regard.errors import ConfigError, nearest

if TYPE_CHECKING:
    from torch import nn

MODELS = {
    "bert": ("regard.models.bert", "Bert"),
    "gpt": ("regard.models.gpt", "GPT"),
    "recurrent": ("regard.models.recurrent", "LanguageModel"),
    "seq2seq": ("regard.models.seq2seq", "Seq2Seq"),
    "tcn": ("regard.models.tcn", "TCN"),
    "transformer": ("regard.models.transformer", "Transformer"),
}


def schema(system: str) -> type[ModelConfig]:
    """The settings of a system."""
    config = _module(system).Config
    assert issubclass(config, ModelConfig)
    return config


def build(system: str, config: ModelConfig) -> nn.Module:
    missing = [name for name in config.required if getattr(config, name) is None]
    if missing:
        raise ConfigError(f"model.{missing[0]}: missing; a {system} cannot be built without it")
    model: nn.Module = getattr(_module(system), MODELS[system][1])(config)
    return model


def _module(system: str) -> Any:
    if system not in MODELS:
        raise ConfigError(f"system: no system {system!r}; {nearest(system, MODELS)}")
    return import_module(MODELS[system][0])
