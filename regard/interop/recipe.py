"""What a foreign folder says besides weights: labels, how to decode, which tokens are marks; as a recipe, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.config import DecodeConfig, ModelConfig, Recipe, make_recipe
from regard.config.data import LabelledData, TaggedData
from regard.config.task import ClassifyTask
from regard.data.tokenizer import Marks, Tokenizers
from regard.errors import ConfigError
from regard.interop.family import Family, Settings, single
from regard.interop.files import GENERATION, inside, read_json, shown
from regard.models import schema

SENTENCES = "sentence_bert_config.json"
NOWHERE = "imported"  # stands where a recipe names the files it was trained on
KINDS = {"BPE": "bpe", "Unigram": "unigram", "WordPiece": "wordpiece", "WordLevel": "word"}
SHORTEST = {"masked": 8, "span": 16, "classify": 4, "tag": 4}  # bounds of data.longest
# Their settings of a search, and ours.
SEARCH = {
    "num_beams": "beam", "no_repeat_ngram_size": "block_ngram", "do_sample": "sample", "temperature": "temperature",
    "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "num_return_sequences": "nbest",
}  # fmt: skip
MOST_LABELS, LONGEST_ANSWER = 100_000, 65_536
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
LENGTHS = ("max_length", "max_new_tokens", "min_length", "length_penalty")
SAID_ELSEWHERE = frozenset(
    (
        "_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states",
        "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id",
    )
)  # fmt: skip

# What changes answers and has no setting of ours, with the values that change nothing.
IDLE: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (), "forced_eos_token_id": (), "early_stopping": (False,), "renormalize_logits": (False,),
}  # fmt: skip


# ---- in


def labels_of(task: str, config: Settings) -> tuple[str, ...]:
    """The names of a classifier's labels, in the order of their numbers. A classifier of one gives a number."""
    if task not in ("classify", "tag"):
        return ()
    if config.get("problem_type") == "multi_label_classification":
        raise ConfigError("problem_type: several labels of one text are not known; wanted is one label, or a number")
    count = config.get("num_labels", 2)
    if type(count) is not int or not 0 < count <= MOST_LABELS:
        raise ConfigError(f"num_labels: {shown(count)} came, but a number from 1 to {MOST_LABELS} is wanted")
    names = config.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    numbered = isinstance(names, dict) and set(names) == {str(i) for i in range(len(names))}
    if not numbered or len({str(name) for name in names.values()}) < len(names):
        raise ConfigError("id2label: must name the labels 0, 1, 2 and so on, each otherwise; restore config.json")
    return tuple(str(names[str(i)]) for i in range(len(names)))


def decoding_of(folder: Path, config: Settings, task: str, marks: Marks) -> tuple[Settings, list[str]]:
    """[decode], and the settings that were not looked at."""
    if task not in ("rewrite", "language"):
        return {}, []
    apart = (folder / GENERATION).exists()
    said = read_json(inside(folder, GENERATION)) if apart else config
    given = {key: value for key, value in said.items() if value is not None}
    for key in SEARCH.keys() & given.keys():
        single(key, given[key])
    found = {ours: given[theirs] for theirs, ours in SEARCH.items() if theirs in given}
    found = {"beam": 1, **found}
    if not found.get("sample"):
        found = {key: value for key, value in found.items() if key not in SAMPLING}
    elif "top_k" not in found:
        found["top_k"] = 50  # what they take where nothing is written
    found |= _lengths(given, task, 1 + len(marks.opening))
    left = _left(given, task, marks, 1 + len(marks.opening))
    if not apart:
        return found, sorted(left)
    strange = given.keys() - SEARCH.keys() - set(LENGTHS) - SAID_ELSEWHERE - {*IDLE}
    return found, [f"{GENERATION}: {key}" for key in sorted(strange | left)]


def recipe_of(
    family: Family,
    architecture: str,
    model: ModelConfig,
    labels: tuple[str, ...],
    config: Settings,
    tokenizers: Tokenizers,
    decode: Settings,
    folder: Path,
    name: str,
) -> Recipe:
    task = family.architectures[architecture].task
    longest = max(SHORTEST.get(task, 2), min(_longest(folder, model.context), 65_536))  # type: ignore[attr-defined]
    values = {
        "title": f"{architecture} from {name}",
        "system": family.system,
        "data": {"train": [NOWHERE], "longest": longest},
        "tokens": _tokens(tokenizers),
        "task": {"name": task, **_task(task, model, labels, config, longest)},
        "model": model.model_dump(mode="json", exclude_none=True),
        "decode": decode,
    }
    if labels and not (task == "classify" and len(labels) == 1):
        values["data"]["labels"] = labels  # type: ignore[index]
    return make_recipe(values, schema)


def _longest(folder: Path, context: int) -> int:
    """Most tokens of a text: what the model can read, or what sentence-transformers cuts it to."""
    if not (folder / SENTENCES).exists():
        return context
    said = read_json(inside(folder, SENTENCES)).get("max_seq_length")
    return min(context, said) if type(said) is int and said > 0 else context


def _lengths(given: Settings, task: str, begun: int) -> Settings:
    """Theirs count the marks that an answer begins with; of a continuation they count the prompt, so it is left."""
    found: Settings = {}
    if isinstance(penalty := given.get("length_penalty"), int | float) and penalty >= 0:
        found |= {"penalty": "average", "alpha": penalty}
    else:
        found |= {"penalty": "average", "alpha": 1.0}
    if isinstance(new := given.get("max_new_tokens"), int):
        found["longest"] = min(new, LONGEST_ANSWER)
    elif task == "rewrite" and isinstance(most := given.get("max_length"), int):
        found["longest"] = max(1, min(most - begun, LONGEST_ANSWER))
    if task == "rewrite" and isinstance(least := given.get("min_length"), int):
        found["shortest"] = max(0, least - begun)
    return found


def _left(given: Settings, task: str, marks: Marks, begun: int) -> set[str]:
    """Settings of a search that are known by name, with a value that changes answers there and nothing here."""
    found = {key for key, idle in IDLE.items() if key in given and given[key] not in idle}
    bad, never = given.get("bad_words_ids"), [[mark] for mark in marks.unsayable]
    if isinstance(bad, list) and all(word in never for word in bad):
        found -= {"bad_words_ids"}  # such a mark is never said here either
    if isinstance(ends := given.get("eos_token_id"), list) and ends != [marks.end]:
        found |= {"eos_token_id"}
    penalty = given.get("length_penalty", 1.0)
    if not isinstance(penalty, int | float) or penalty < 0:
        found |= {"length_penalty"}
    for key, least in (("max_length", begun), ("max_new_tokens", 0), ("min_length", 0)):
        value = given.get(key, least)
        if not isinstance(value, int) or value - least > LONGEST_ANSWER:
            found |= {key}
    if task == "language" and "max_length" in given and "max_new_tokens" not in given:
        found |= {"max_length"}
    return found | ({"min_length"} if task == "language" and given.get("min_length") else set())


def _task(task: str, model: ModelConfig, labels: tuple[str, ...], config: Settings, longest: int) -> Settings:
    match task:
        case "masked":
            return {"next_sentence": model.head == "pretrain"}  # type: ignore[attr-defined]
        case "classify" if len(labels) == 1 or config.get("problem_type") == "regression":
            if len(labels) > 1:
                raise ConfigError(f"problem_type: a regression to {len(labels)} numbers is not known; wanted is one")
            return {"kind": "number"}
        case "tag":
            marked = [label for label in labels if label[:2] in ("B-", "I-")]
            return {"scheme": "iob2" if marked else "plain"}
        case "span":  # as usual, or with room for the passage where the model reads little
            return {"question": min(64, longest // 4), "stride": min(128, longest // 4)}
        case _:
            return {}


def _tokens(tokenizers: Tokenizers) -> Settings:
    kind = KINDS.get(type(tokenizers.target.inner.model).__name__, "bpe")
    size = min(1_000_000, max(8, tokenizers.target.size))
    return {"kind": kind, "size": size, "joint": tokenizers.joint}


# ---- out


def labels_back(recipe: Recipe) -> Settings:
    data, task = recipe.data, recipe.task
    if isinstance(task, ClassifyTask) and task.kind == "number":
        return {"problem_type": "regression", "num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    if not isinstance(data, LabelledData | TaggedData) or not data.labels:
        return {}
    return {
        "id2label": {str(i): label for i, label in enumerate(data.labels)},
        "label2id": {label: i for i, label in enumerate(data.labels)},
    }


def token_ids(family: Family, tokenizers: Tokenizers, model: ModelConfig) -> Settings:
    """The numbers of the marks, under their names; what the model has no row for, it does not have."""
    marks = tokenizers.target.marks
    vocab: int = model.vocab  # type: ignore[attr-defined]
    found: dict[str, Any] = {}
    for theirs, ours in family.ids.items():
        mark = getattr(marks, ours)
        mark = (mark[0] if mark else None) if isinstance(mark, tuple) else mark
        found[theirs] = mark if mark is not None and mark < vocab else None
    return found


def generation_of(recipe: Recipe, family: Family, config: Settings, marks: Marks) -> Settings:
    """How they are to search, for what writes."""
    if recipe.task.name not in ("rewrite", "language"):
        return {}
    decode, rewrites, begun = recipe.decode, recipe.task.name == "rewrite", 1 + len(marks.opening)
    found = {theirs: getattr(decode, ours) for theirs, ours in SEARCH.items()}
    found = {key: value for key, value in found.items() if decode.sample or SEARCH[key] not in SAMPLING}
    if decode.sample:
        found["num_beams"] = 1
    elif decode.penalty != "wu":  # which they do not know
        found["length_penalty"] = decode.alpha if decode.penalty == "average" else 0.0
    if decode.longest:
        found |= {"max_length": decode.longest + begun} if rewrites else {"max_new_tokens": decode.longest}
    if decode.shortest and rewrites:
        found["min_length"] = decode.shortest + begun
    found |= {key: config[key] for key in family.ids if config.get(key) is not None}
    return {key: value for key, value in found.items() if value != _default(SEARCH.get(key))}


def _default(ours: str | None) -> Any:
    """Ours where it is theirs too; a beam is always written."""
    return None if ours in (None, "beam") else DecodeConfig.model_fields[ours].default
