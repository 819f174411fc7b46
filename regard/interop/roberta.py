"""RoBERTa (Liu et al. 2019): BERT's blocks; positions begin behind the number of the padding, and no next sentence."""

from __future__ import annotations

from regard.errors import ConfigError
from regard.interop.bert import ACTIVATIONS, BUFFERS, IDLE, KEYS, body, pooler, without_pooler
from regard.interop.family import Architecture, Family, Held, Key, Row, Settings, both
from regard.interop.files import shown
from regard.models.bert import Config


def masked(config: Config, prefix: str) -> list[Row]:
    found = [
        *both("lm_head.dense", "masked.dense"),
        *both("lm_head.layer_norm", "masked.norm"),
        Row("lm_head.bias", ("masked.bias",)),
    ]
    return found if config.tied else found + both("lm_head.decoder", "masked")


def twins(config: Config, prefix: str) -> dict[str, str]:
    if not config.tied:
        return {}
    return {
        "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


def refine(ours: Settings, theirs: Settings, held: Held) -> Settings:
    pad, rows = theirs.get("pad_token_id", 1), ours["context"]
    if type(pad) is not int or type(rows) is not int or not 0 <= pad < rows - 1:
        wanted = "a number below those of the positions is wanted"
        raise ConfigError(
            f"pad_token_id: {shown(pad)} came with {shown(rows)} positions, but {wanted}; restore config.json"
        )
    found = {**without_pooler(ours, held), "offset": pad + 1, "context": rows - pad - 1}
    _check_gelu(found["head"], found["activation"])
    return found


def restore(config: Config) -> Settings:
    return {"max_position_embeddings": config.context + config.offset, "pad_token_id": config.offset - 1}


def fits(config: Config) -> str | None:
    if config.pooler == "relu":
        return 'model.pooler: a RoBERTa has "tanh", but it is "relu"; train with that'
    if config.head == "pretrain":
        return 'model.head: a RoBERTa guesses hidden tokens alone; train with head = "masked"'
    _check_gelu(config.head, config.activation)
    return None


def _check_gelu(head: str, activation: str) -> None:
    if head == "masked" and activation != "gelu":
        raise ConfigError(f"hidden_act: a RoBERTa guesses tokens with gelu, but its blocks have {activation}")


FAMILY = Family(
    kind="roberta",
    system="bert",
    prefix="roberta.",
    architectures={
        "RobertaForMaskedLM": Architecture("masked", {"head": "masked"}, masked),
        "RobertaForSequenceClassification": Architecture(
            "classify",
            {"head": "sentence"},
            lambda c, p: [*both("classifier.dense", "pooler"), *both("classifier.out_proj", "labels.1")],
        ),
        "RobertaForTokenClassification": Architecture(
            "tag", {"head": "words"}, lambda c, p: both("classifier", "labels.1")
        ),
        "RobertaForQuestionAnswering": Architecture(
            "span", {"head": "words", "labels": 2}, lambda c, p: both("qa_outputs", "labels.1")
        ),
        "RobertaModel": Architecture("masked", {"head": "none"}, pooler, bare=True),
    },
    keys={**KEYS, "vocab_size": Key("vocab", 50265)},
    activation="hidden_act",
    activations=ACTIVATIONS,
    must={"position_embedding_type": ("absolute",)},
    idle=IDLE,
    body=body,
    buffers=BUFFERS,
    unused=("pooler.dense.weight", "pooler.dense.bias"),
    ids={"pad_token_id": "pad", "bos_token_id": "begin", "eos_token_id": "end"},
    twins=twins,
    refine=refine,
    restore=restore,
    kin=lambda config: config.offset > 0 and config.segments > 0,
    fits=fits,
)
