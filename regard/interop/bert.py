"""BERT as Hugging Face writes it, and MiniLM, which is a BERT without a head."""

from __future__ import annotations

from regard.errors import ConfigError
from regard.interop.family import Architecture, Family, Held, Key, Row, Settings, both
from regard.models.bert import Config

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip
KEYS = {
    "vocab_size": Key("vocab", 30522),
    "type_vocab_size": Key("segments", 2),
    "hidden_size": Key("dim", 768),
    "num_attention_heads": Key("heads", 12),
    "num_hidden_layers": Key("layers", 12),
    "intermediate_size": Key("hidden", 3072),
    "max_position_embeddings": Key("context", 512),
    "hidden_dropout_prob": Key("dropout", 0.1),
    "attention_probs_dropout_prob": Key("attention_dropout", 0.1),
    "layer_norm_eps": Key("epsilon", 1e-12),
    "tie_word_embeddings": Key("tied", True),
}
BLOCK = {
    "attention.self.query": "attention.score.query",
    "attention.self.key": "attention.score.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "around_attention.norm",
    "intermediate.dense": "feed_forward.wide",
    "output.dense": "feed_forward.narrow",
    "output.LayerNorm": "around_feed_forward.norm",
}
OLDER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
IDLE = frozenset(("classifier_dropout",))  # dropout of a head: of training alone


def body(config: Config, prefix: str) -> list[Row]:
    if config.segments == 0:
        raise ConfigError("type_vocab_size: 0 came, but 1 at least is wanted; restore config.json")
    found = [
        Row(f"{prefix}embeddings.word_embeddings.weight", ("words.weight",)),
        Row(f"{prefix}embeddings.token_type_embeddings.weight", ("segments.weight",)),
        Row(f"{prefix}embeddings.position_embeddings.weight", ("positions.table.weight",)),
        *both(f"{prefix}embeddings.LayerNorm", "norm"),
    ]
    for i in range(config.layers):
        for theirs, ours in BLOCK.items():
            found += both(f"{prefix}encoder.layer.{i}.{theirs}", f"encoder.{i}.{ours}")
    return found


def pooler(config: Config, prefix: str) -> list[Row]:
    return both(f"{prefix}pooler.dense", "pooler") if config.summarises else []


def masked(config: Config, prefix: str) -> list[Row]:
    """Where the matrix is not the words', the bias beside it counts, and the other is only there."""
    found = [
        *both("cls.predictions.transform.dense", "masked.dense"),
        *both("cls.predictions.transform.LayerNorm", "masked.norm"),
        Row("cls.predictions.bias", ("masked.bias",)),
    ]
    return found if config.tied else found + both("cls.predictions.decoder", "masked")


def pretrained(config: Config, prefix: str) -> list[Row]:
    return [*pooler(config, prefix), *masked(config, prefix), *both("cls.seq_relationship", "next")]


def twins(config: Config, prefix: str) -> dict[str, str]:
    if not config.tied:
        return {}
    return {
        "cls.predictions.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }


def refine(ours: Settings, theirs: Settings, held: Held) -> Settings:
    """Many a file has more on top than its configuration says."""
    if ours["head"] == "masked" and "cls.seq_relationship.weight" in held.names:
        return {**ours, "head": "pretrain"}
    return without_pooler(ours, held)


def without_pooler(ours: Settings, held: Held) -> Settings:
    """A body may have been saved without one."""
    bare = ours["head"] == "none" and not any(name.endswith("pooler.dense.weight") for name in held.names)
    return {**ours, "pooler": "none"} if bare else ours


def fits(config: Config) -> str | None:
    return 'model.pooler: a BERT has "tanh", but it is "relu"; train with that' if config.pooler == "relu" else None


FAMILY = Family(
    kind="bert",
    system="bert",
    prefix="bert.",
    architectures={
        "BertForPreTraining": Architecture("masked", {"head": "pretrain"}, pretrained),
        "BertForMaskedLM": Architecture("masked", {"head": "masked"}, masked),
        "BertForSequenceClassification": Architecture(
            "classify", {"head": "sentence"}, lambda c, p: [*pooler(c, p), *both("classifier", "labels.1")]
        ),
        "BertForTokenClassification": Architecture(
            "tag", {"head": "words"}, lambda c, p: both("classifier", "labels.1")
        ),
        "BertForQuestionAnswering": Architecture(
            "span", {"head": "words", "labels": 2}, lambda c, p: both("qa_outputs", "labels.1")
        ),
        "BertModel": Architecture("masked", {"head": "none"}, pooler, bare=True),
    },
    keys=KEYS,
    activation="hidden_act",
    activations=ACTIVATIONS,
    must={"position_embedding_type": ("absolute",)},
    idle=IDLE,
    body=body,
    buffers=BUFFERS,
    unused=("pooler.dense.weight", "pooler.dense.bias"),
    aliases=OLDER,
    twins=twins,
    refine=refine,
    fits=fits,
)
