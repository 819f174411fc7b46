"""GPT-2 as Hugging Face writes it: its matrices are transposed, and queries, keys and values lie in one."""

from __future__ import annotations

from regard.interop.family import THIRDS, TRANSPOSED, Architecture, Family, Key, Row, Settings, both
from regard.models.gpt import Config

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu": "gelu",
    "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip
KEYS = {
    "vocab_size": Key("vocab", 50257),
    "n_embd": Key("dim", 768),
    "n_head": Key("heads", 12),
    "n_layer": Key("layers", 12),
    "n_positions": Key("context", 1024),
    "resid_pdrop": Key("dropout", 0.1),
    "attn_pdrop": Key("attention_dropout", 0.1),
    "layer_norm_epsilon": Key("epsilon", 1e-5),
    "tie_word_embeddings": Key("tied", True),
}
IDLE = frozenset(
    (
        "n_ctx", "embd_pdrop", "predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation",
        "summary_proj_to_labels", "summary_first_dropout", "reorder_and_upcast_attn",
    )
)  # fmt: skip
BUFFERS = (".attn.bias", ".attn.masked_bias", ".position_ids")


def blocks(config: Config, prefix: str) -> list[Row]:
    """GPT-1's as well."""
    found = []
    for i in range(config.layers):
        theirs, ours = f"{prefix}h.{i}", f"blocks.{i}"
        query, key, value = f"{ours}.attention.score.query", f"{ours}.attention.score.key", f"{ours}.attention.value"
        found += [
            *both(f"{theirs}.attn.c_attn", query, key, value, turn=THIRDS),
            *both(f"{theirs}.attn.c_proj", f"{ours}.attention.output", turn=TRANSPOSED),
            *both(f"{theirs}.ln_1", f"{ours}.around_attention.norm"),
            *both(f"{theirs}.mlp.c_fc", f"{ours}.feed_forward.wide", turn=TRANSPOSED),
            *both(f"{theirs}.mlp.c_proj", f"{ours}.feed_forward.narrow", turn=TRANSPOSED),
            *both(f"{theirs}.ln_2", f"{ours}.around_feed_forward.norm"),
        ]
    return found


def body(config: Config, prefix: str) -> list[Row]:
    return [
        Row(f"{prefix}wte.weight", ("words.weight",)),
        Row(f"{prefix}wpe.weight", ("positions.table.weight",)),
        *blocks(config, prefix),
        *both(f"{prefix}ln_f", "norm"),
    ]


def head(config: Config, prefix: str) -> list[Row]:
    return [] if config.tied else [Row("lm_head.weight", ("head.weight",))]


def twins(config: Config, prefix: str) -> dict[str, str]:
    return {"lm_head.weight": f"{prefix}wte.weight"} if config.tied else {}


def restore(config: Config) -> Settings:
    return {"embd_pdrop": config.dropout}


FAMILY = Family(
    kind="gpt2",
    system="gpt",
    prefix="transformer.",
    architectures={"GPT2LMHeadModel": Architecture("language", {"norm": "pre", "labels": None}, head)},
    keys={**KEYS, "n_inner": Key("hidden", None)},
    activation="activation_function",
    activations=ACTIVATIONS,
    must={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    idle=IDLE,
    body=body,
    buffers=BUFFERS,
    ids={"bos_token_id": "begin", "eos_token_id": "end"},
    twins=twins,
    restore=restore,
)
