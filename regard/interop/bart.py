"""BART (Lewis et al. 2020) as Hugging Face writes it: a Transformer with learned positions of each side, from row two
on, and a norm behind the embeddings.
"""

from __future__ import annotations

from regard.errors import ConfigError
from regard.interop.bert import ACTIVATIONS
from regard.interop.family import FLAT, Architecture, Family, Held, Key, Row, Settings, both
from regard.interop.files import shown
from regard.models.transformer import Config

OFFSET = 2
KEYS = {
    "vocab_size": Key("vocab", 50265),
    "d_model": Key("dim", 1024),
    "encoder_attention_heads": Key("heads", 16),
    "encoder_layers": Key("layers", 12),
    "decoder_layers": Key("decoder_layers", 12),
    "encoder_ffn_dim": Key("hidden", 4096),
    "max_position_embeddings": Key("context", 1024),
    "dropout": Key("dropout", 0.1),
    "attention_dropout": Key("attention_dropout", 0.0),
    "activation_dropout": Key("activation_dropout", 0.0),
    "scale_embedding": Key("scaled", False),
}
MUST = {  # of older files
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
}
IDLE = frozenset(
    (
        "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "classifier_dropout", "classif_dropout",
        "init_std", "gradient_checkpointing", "add_bias_logits", "force_bos_token_to_be_generated",
        "decoder_attention_heads", "decoder_ffn_dim", "share_encoder_decoder_embeddings", "decoder_vocab_size",
    )
)  # fmt: skip
IDS = {
    "pad_token_id": "pad",
    "bos_token_id": "before",
    "eos_token_id": "end",
    "decoder_start_token_id": "begin",
    "forced_bos_token_id": "opening",
}
SIDES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
ATTENTION = {"q_proj": "score.query", "k_proj": "score.key", "v_proj": "value", "out_proj": "output"}
BLOCK = {
    "self_attn_layer_norm": "around_attention.norm",
    "fc1": "feed_forward.wide",
    "fc2": "feed_forward.narrow",
    "final_layer_norm": "around_feed_forward.norm",
}


def blocks(config: Config) -> list[Row]:
    """Marian's as well."""
    found = []
    for i in range(config.layers):
        found += _block(f"model.encoder.layers.{i}", f"encoder.{i}", {"self_attn": "attention"})
    for i in range(config.decoder_layers or config.layers):
        theirs, ours = f"model.decoder.layers.{i}", f"decoder.{i}"
        found += _block(theirs, ours, {"self_attn": "attention", "encoder_attn": "cross"})
        found += both(f"{theirs}.encoder_attn_layer_norm", f"{ours}.around_cross.norm")
    return found


def _block(theirs: str, ours: str, attentions: dict[str, str]) -> list[Row]:
    found = [row for name, us in BLOCK.items() for row in both(f"{theirs}.{name}", f"{ours}.{us}")]
    for look, we_look in attentions.items():
        for name, us in ATTENTION.items():
            found += both(f"{theirs}.{look}.{name}", f"{ours}.{we_look}.{us}")
    return found


def body(config: Config, prefix: str) -> list[Row]:
    return [
        *words(config),
        Row("model.encoder.embed_positions.weight", ("source_positions.table.weight",)),
        Row("model.decoder.embed_positions.weight", ("positions.table.weight",)),
        *both("model.encoder.layernorm_embedding", "source_norm"),
        *both("model.decoder.layernorm_embedding", "norm"),
        *blocks(config),
    ]


def words(config: Config) -> list[Row]:
    """Where no two matrices are one, theirs keeps a third for the words, which nobody uses."""
    shared = Row("model.shared.weight", ("words.weight",))
    return [shared, *apart(config)] if config.tied == "none" else [shared]


def apart(config: Config) -> list[Row]:
    source = Row("model.encoder.embed_tokens.weight", ("source_words.weight",))
    return [source, Row("model.decoder.embed_tokens.weight", ("words.weight",))]


def head(config: Config, prefix: str) -> list[Row]:
    found = [Row("final_logits_bias", ("head.bias",), FLAT)] if config.head_bias else []
    return found if config.tied in ("all", "target") else [*found, Row("lm_head.weight", ("head.weight",))]


def twins(config: Config, prefix: str) -> dict[str, str]:
    names = {"all": (*SIDES, "lm_head.weight"), "words": SIDES}.get(config.tied, ())
    return dict.fromkeys(names, "model.shared.weight")


def refine(ours: Settings, theirs: Settings, held: Held) -> Settings:
    own = "words" if SIDES[0] not in held.names else "none"
    tied = "all" if theirs.get("tie_word_embeddings", True) else own
    found = {"positions": "learned", "source_positions": "own", "offset": OFFSET, "embedding_norm": True, "tied": tied}
    return {**ours, **alike(ours, theirs, held), **found}


def alike(ours: Settings, theirs: Settings, held: Held) -> Settings:
    """What BART and Marian have in common, after a look whether both sides are built alike."""
    for one, other in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ):
        default = KEYS[one].default
        if theirs.get(one, default) != theirs.get(other, default):
            what = f"{other}: {shown(theirs.get(other, default))} came, and {one} is {shown(theirs.get(one, default))}"
            raise ConfigError(f"{what}; a Transformer of ours is as wide on both sides")
    return {"norm": "post", "bias": True, "head_bias": "final_logits_bias" in held.names}


def restore(config: Config) -> Settings:
    return {
        "is_encoder_decoder": True,
        "forced_eos_token_id": None,  # ours cuts a long answer without a mark; left out, theirs is a number
        "decoder_layers": config.decoder_layers or config.layers,
        "decoder_attention_heads": config.heads,
        "decoder_ffn_dim": config.hidden,
        "num_hidden_layers": config.layers,
        "tie_word_embeddings": config.tied in ("all", "target"),
    }


def fits(config: Config) -> str | None:
    for name, value in {"source_positions": "own", "offset": OFFSET, "embedding_norm": True}.items():
        if (found := getattr(config, name)) != value:
            return f"model.{name}: a BART has {value!r}, but it is {found!r}; export it to ONNX"
    if config.tied == "target" or config.source_vocab is not None:
        return f'model.tied: a BART has one vocabulary, and tied = "all", "words" or "none", but it is "{config.tied}"'
    return fits_both(config)


def fits_both(config: Config) -> str | None:
    for name, value in {"norm": "post", "score": "scaled_dot", "normalise": "layer"}.items():
        if (found := getattr(config, name)) != value:
            return f'model.{name}: a Transformer at Hugging Face has "{value}", but it is "{found}"; export it to ONNX'
    return None


FAMILY = Family(
    kind="bart",
    system="transformer",
    prefix="model.",
    architectures={"BartForConditionalGeneration": Architecture("rewrite", head=head)},
    keys=KEYS,
    activation="activation_function",
    activations=ACTIVATIONS,
    must={
        **MUST,
        "normalize_embedding": (True,),
        "static_position_embeddings": (False,),
        "extra_pos_embeddings": (OFFSET,),
    },
    idle=IDLE,
    body=body,
    ids=IDS,
    twins=twins,
    refine=refine,
    restore=restore,
    kin=lambda config: config.positions == "learned",
    fits=fits,
)
