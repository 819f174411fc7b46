"""DistilBERT (Sanh et al. 2019): a BERT of half the layers, without segments, whose summary is a relu."""

from __future__ import annotations

from regard.interop.bert import ACTIVATIONS
from regard.interop.family import Architecture, Family, Held, Key, Row, Settings, both
from regard.models.bert import Config

EPSILON = 1e-12  # of its norms, written nowhere
BLOCK = {
    "attention.q_lin": "attention.score.query",
    "attention.k_lin": "attention.score.key",
    "attention.v_lin": "attention.value",
    "attention.out_lin": "attention.output",
    "sa_layer_norm": "around_attention.norm",
    "ffn.lin1": "feed_forward.wide",
    "ffn.lin2": "feed_forward.narrow",
    "output_layer_norm": "around_feed_forward.norm",
}


def body(config: Config, prefix: str) -> list[Row]:
    found = [
        Row(f"{prefix}embeddings.word_embeddings.weight", ("words.weight",)),
        Row(f"{prefix}embeddings.position_embeddings.weight", ("positions.table.weight",)),
        *both(f"{prefix}embeddings.LayerNorm", "norm"),
    ]
    for i in range(config.layers):
        for theirs, ours in BLOCK.items():
            found += both(f"{prefix}transformer.layer.{i}.{theirs}", f"encoder.{i}.{ours}")
    return found


def masked(config: Config, prefix: str) -> list[Row]:
    found = [
        *both("vocab_transform", "masked.dense"),
        *both("vocab_layer_norm", "masked.norm"),
        Row("vocab_projector.bias", ("masked.bias",)),
    ]
    return found if config.tied else [*found, Row("vocab_projector.weight", ("masked.weight",))]


def twins(config: Config, prefix: str) -> dict[str, str]:
    return {"vocab_projector.weight": f"{prefix}embeddings.word_embeddings.weight"} if config.tied else {}


def refine(ours: Settings, theirs: Settings, held: Held) -> Settings:
    return {**ours, "segments": 0, "epsilon": EPSILON}


def fits(config: Config) -> str | None:
    if config.offset:
        return f"model.offset: a DistilBERT has none, but it is {config.offset}; train without"
    if config.summarises and config.pooler != "relu":
        return f'model.pooler: a DistilBERT has "relu", but it is "{config.pooler}"; train with that, or with segments'
    if config.epsilon != EPSILON:
        return f"model.epsilon: a DistilBERT has {EPSILON}, but it is {config.epsilon}; train with that"
    return None


FAMILY = Family(
    kind="distilbert",
    system="bert",
    prefix="distilbert.",
    architectures={
        "DistilBertForMaskedLM": Architecture("masked", {"head": "masked"}, masked),
        "DistilBertForSequenceClassification": Architecture(
            "classify",
            {"head": "sentence", "pooler": "relu"},
            lambda c, p: [*both("pre_classifier", "pooler"), *both("classifier", "labels.1")],
        ),
        "DistilBertForTokenClassification": Architecture(
            "tag", {"head": "words"}, lambda c, p: both("classifier", "labels.1")
        ),
        "DistilBertForQuestionAnswering": Architecture(
            "span", {"head": "words", "labels": 2}, lambda c, p: both("qa_outputs", "labels.1")
        ),
        "DistilBertModel": Architecture("masked", {"head": "none", "pooler": "none"}, bare=True),
    },
    keys={
        "vocab_size": Key("vocab", 30522),
        "dim": Key("dim", 768),
        "n_heads": Key("heads", 12),
        "n_layers": Key("layers", 6),
        "hidden_dim": Key("hidden", 3072),
        "max_position_embeddings": Key("context", 512),
        "dropout": Key("dropout", 0.1),
        "attention_dropout": Key("attention_dropout", 0.1),
        "tie_word_embeddings": Key("tied", True),
    },
    activation="activation",
    activations=ACTIVATIONS,
    idle=frozenset(("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")),
    body=body,
    buffers=("embeddings.position_ids",),
    twins=twins,
    refine=refine,
    kin=lambda config: config.segments == 0,
    fits=fits,
)
