"""GPT-1 as Hugging Face writes it: GPT-2's blocks with the norms behind, and a feed-forward four times as wide."""

from __future__ import annotations

from regard.interop.family import Architecture, Family, Held, Key, Row, Settings
from regard.interop.gpt2 import BUFFERS, IDLE, KEYS, blocks, head, restore
from regard.models.gpt import Config


def body(config: Config, prefix: str) -> list[Row]:
    return [
        Row(f"{prefix}tokens_embed.weight", ("words.weight",)),
        Row(f"{prefix}positions_embed.weight", ("positions.table.weight",)),
        *blocks(config, prefix),
    ]


def twins(config: Config, prefix: str) -> dict[str, str]:
    return {"lm_head.weight": f"{prefix}tokens_embed.weight"} if config.tied else {}


def refine(ours: Settings, theirs: Settings, held: Held) -> Settings:
    return {**ours, "scaled_init": False}


def fits(config: Config) -> str | None:
    wide = config.hidden in (None, 4 * config.dim)
    return (
        None
        if wide
        else f"model.hidden: a GPT-1 has 4 · dim = {4 * config.dim}, but it is {config.hidden}; train with that"
    )


FAMILY = Family(
    kind="openai-gpt",
    system="gpt",
    prefix="transformer.",
    architectures={"OpenAIGPTLMHeadModel": Architecture("language", {"norm": "post", "labels": None}, head)},
    keys={**KEYS, "vocab_size": Key("vocab", 40478), "n_positions": Key("context", 512)},
    activation="afn",
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"},  # their gelu is the tanh one
    idle=IDLE,
    body=body,
    buffers=BUFFERS,
    ids={"bos_token_id": "begin", "eos_token_id": "end"},
    twins=twins,
    refine=refine,
    restore=restore,
    kin=lambda config: config.norm == "post",
    fits=fits,
)
