"""A family of foreign models is a table that is read both ways: their names and ours, of tensors and of settings.

What a row cannot say by a name, it says by a turn: a small change of the tensor that can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.errors import CheckpointError, ConfigError, nearest
from regard.interop.files import Entry, load, shown
from regard.weights import Tensors

Split = Callable[[Tensor], tuple[Tensor, ...]]
Join = Callable[[tuple[Tensor, ...]], Tensor]


# ---- tensors


@dataclass(frozen=True)
class Turn:
    """One tensor of theirs to some of ours, and back."""

    read: Split
    write: Join


SAME = Turn(lambda t: (t,), lambda ours: ours[0])
TRANSPOSED = Turn(lambda t: (t.t(),), lambda ours: ours[0].t())
FLAT = Turn(lambda t: (t[0],), lambda ours: ours[0][None])  # a row of one: (1, n) is (n,)
THIRDS = Turn(  # queries, keys and values beside each other, each transposed: (d, 3d) is 3 × (d, d)
    lambda t: tuple(part.t() for part in t.chunk(3, -1)), lambda ours: torch.cat([part.t() for part in ours], -1)
)


@dataclass(frozen=True)
class Row:
    theirs: str
    ours: tuple[str, ...]
    turn: Turn = SAME


def both(theirs: str, *ours: str, turn: Turn = SAME) -> list[Row]:
    """Weight and bias of a layer."""
    return [Row(f"{theirs}.{leaf}", tuple(f"{name}.{leaf}" for name in ours), turn) for leaf in ("weight", "bias")]


def from_theirs(rows: Iterable[Row], theirs: Mapping[str, Tensor]) -> Tensors:
    return {name: part for row in rows for name, part in zip(row.ours, row.turn.read(theirs[row.theirs]), strict=True)}


def to_theirs(rows: Iterable[Row], ours: Mapping[str, Tensor]) -> Tensors:
    """Copies, of which each lies in one piece."""
    return {
        row.theirs: row.turn.write(tuple(ours[name] for name in row.ours)).clone(memory_format=torch.contiguous_format)
        for row in rows
    }


def shadowed(rows: Iterable[Row], theirs: Mapping[str, Tensor], ours: Tensors) -> list[str]:
    """Tensors that nobody uses, since a later row has the same of ours: those that said something else."""
    last = {name: row for row in rows for name in row.ours}
    under = [row for row in rows if any(last[name] is not row for name in row.ours)]
    return [name for name, tensor in to_theirs(under, ours).items() if not torch.equal(tensor, theirs[name])]


# ---- settings


@dataclass(frozen=True)
class Key:
    """Our name of one of their settings, and what they take where it is not written."""

    ours: str
    default: Any


@dataclass(frozen=True)
class Architecture:
    """What a model of the family was built for: our task, and what that makes of our model."""

    task: str
    model: Mapping[str, Any] = field(default_factory=dict)
    head: Callable[[Any, str], list[Row]] = lambda config, prefix: []
    """Rows of what stands on the body."""
    bare: bool = False
    """No head: the names of its tensors go without the family's prefix."""


Settings = dict[str, Any]


@dataclass(frozen=True)
class Held:
    """The tensors of a folder, none of them loaded yet."""

    entries: Mapping[str, Entry]

    @property
    def names(self) -> Iterable[str]:
        return self.entries.keys()

    def read(self, name: str) -> Tensor:
        return load(self.entries, [name])[name]


@dataclass(frozen=True)
class Family:
    kind: str
    """Their `model_type`."""
    system: str
    architectures: Mapping[str, Architecture]
    keys: Mapping[str, Key]
    activation: str
    """Their key of the activation."""
    activations: Mapping[str, str]
    """Their names of activations, and ours; the first of several is written."""
    body: Callable[[Any, str], list[Row]]
    """Rows of what all architectures have, behind a prefix."""
    prefix: str
    must: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Settings that must have one of these values, where they are written; the first is what we write."""
    idle: frozenset[str] = frozenset()
    """Settings that change nothing of what a trained model computes."""
    unused: tuple[str, ...] = ()
    """Ends of names of tensors that may be there and that nothing is done with."""
    buffers: tuple[str, ...] = ()
    """Likewise, of what can be computed."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Ends of names in older files, and what they are called now."""
    ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})
    """Their names of the numbers of marks, and ours of the marks."""
    twins: Callable[[Any, str], dict[str, str]] = lambda config, prefix: {}
    """Tensors that may be written twice, and the name that counts."""
    refine: Callable[[Settings, Settings, Held], Settings] = lambda ours, theirs, held: ours
    """Our settings, after a look at theirs and at the tensors."""
    restore: Callable[[Any], Settings] = lambda config: {}
    """Their settings that are not in `keys`, of a model of ours."""
    kin: Callable[[Any], bool] = lambda config: True
    """Whether a model of ours is written as one of this family; the first that says so has it."""
    fits: Callable[[Any], str | None] = lambda config: None
    """Why it cannot be, or None."""
    tables: Callable[[Any], Tensors] = lambda config: {}
    """Tensors that they keep and we compute."""

    def rows(self, architecture: str, config: ModelConfig, prefix: str) -> list[Row]:
        return [*self.body(config, prefix), *self.architectures[architecture].head(config, prefix)]

    def known(self) -> frozenset[str]:
        return frozenset((*self.keys, *self.must, *self.idle, self.activation))


LONGEST = 80  # letters of a setting
GENERAL = frozenset(  # that every family may have: read elsewhere (of a search, by recipe.py), or not about weights
    (
        "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path",
        "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
        "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids",
        "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
        "initializer_range", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
        "is_encoder_decoder", "gradient_checkpointing", "tie_word_embeddings", "tie_encoder_decoder", "torchscript",
        "pruned_heads",
        "num_beams", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "early_stopping",
        "do_sample", "temperature", "top_k", "top_p", "renormalize_logits", "max_new_tokens", "min_p",
        "num_return_sequences",
    )
)  # fmt: skip
GENERAL_MUST: Mapping[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False,),
}


def architecture_of(family: Family, config: Settings) -> str:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name is None:
        known = ", ".join(family.architectures)
        what = f'architectures: config.json names none; write "architectures": ["{next(iter(family.architectures))}"]'
        raise ConfigError(f"{what}, or whichever the weights are of: {known}")
    if not isinstance(name, str) or name not in family.architectures:
        what = f"architectures: {shown(name)} of the family {family.kind!r} is not known"
        raise ConfigError(f"{what}; {nearest(str(name)[:80], family.architectures)}")
    return name


def architecture_for(family: Family, task: str, model: ModelConfig) -> str:
    """The one that is built like a model of ours."""
    for name, one in family.architectures.items():
        if one.task == task and all(getattr(model, key) == value for key, value in one.model.items()):
            return name
    known = ", ".join(family.architectures)
    raise ConfigError(f"the family {family.kind!r} has nothing for the task {task!r} with such a head; known: {known}")


def settings_of(family: Family, architecture: str, config: Settings, held: Held) -> Settings:
    """Our [model] settings of their configuration. What must hold is checked; what is not known is not looked at."""
    for key, values in {**GENERAL_MUST, **family.must}.items():
        if key in config and not any(config[key] == value and type(config[key]) is type(value) for value in values):
            wanted = " or ".join(repr(value) for value in values)
            what = f"{key}: {shown(config[key])} of the family {family.kind!r} is not known"
            raise ConfigError(f"{what}; wanted is {wanted}")
    for key in family.keys.keys() & config.keys():
        single(key, config[key])
    ours = {key.ours: config.get(name, key.default) for name, key in family.keys.items()}
    ours = {**ours, "activation": _activation(family, config), **family.architectures[architecture].model}
    ours = family.refine(ours, config, held)
    for key in ("layers", "decoder_layers"):
        if isinstance(count := ours.get(key), int) and count > len(held.entries):
            what = f"config.json means {shown(count)} layers, but the file has {len(held.entries)} tensors"
            raise CheckpointError(f"{what}; {ASTRAY}")
    return ours


def single(key: str, value: Any) -> None:
    """A setting is a number or a word, and no book."""
    if len(repr(value)) > LONGEST:
        raise ConfigError(f"{key}: a number or a word is wanted, but it is {shown(value)}")


def unknown_keys(family: Family, config: Settings) -> list[str]:
    return sorted(config.keys() - family.known() - GENERAL - GENERAL_MUST.keys())


def config_of(family: Family, architecture: str, model: ModelConfig) -> Settings:
    """Their configuration of our [model] settings."""
    if (why := family.fits(model)) is not None:
        raise ConfigError(why)
    written = {name: getattr(model, key.ours) for name, key in family.keys.items()}
    fixed = {name: values[0] for name, values in family.must.items()}
    back = {ours: theirs for theirs, ours in reversed(list(family.activations.items()))}
    written[family.activation] = back[model.activation]  # type: ignore[attr-defined]
    return {"architectures": [architecture], "model_type": family.kind, **fixed, **written, **family.restore(model)}


def _activation(family: Family, config: Settings) -> str:
    name = config.get(family.activation, next(iter(family.activations)))
    if not isinstance(name, str) or name not in family.activations:
        what = f"{family.activation}: no activation {shown(name)}"
        raise ConfigError(f"{what}; {nearest(str(name)[:80], family.activations)}")
    return family.activations[name]


# ---- a file against its table

ASTRAY = "fetch config.json and the weights of one and the same model"


def match(
    family: Family, twins: Mapping[str, str], entries: Mapping[str, Entry], wanted: Tensors
) -> tuple[dict[str, str], list[str]]:
    """Where each of the tensors that are `wanted` (by shape) lies in the file, and what lies there unused.

    Names and shapes are compared before any tensor is loaded, so that a file cannot ask for more memory than it fills.
    """
    found, idle = {}, []
    for name in entries:
        now = _today(family, name)
        if now in wanted and now not in found:
            found[now] = name
        elif now not in twins and not name.endswith(family.buffers):
            idle.append(name)
    for twin, name in twins.items():
        if twin in entries and name not in found:
            found[name] = twin
    missing, strange = sorted(wanted.keys() - found.keys()), [n for n in idle if not n.endswith(family.unused)]
    if missing:
        what = f"the file lacks {shown(missing[0])}{_and_more(missing)}, which its {family.kind} model has"
        raise CheckpointError(f"{what}; {ASTRAY}")
    if strange:
        what = f"the file has {shown(strange[0])}{_and_more(strange)}, which its {family.kind} model lacks"
        raise CheckpointError(f"{what}; {ASTRAY}")
    for now, name in found.items():
        if tuple(wanted[now].shape) != entries[name].shape:
            what = (
                f"{name!r} has the shape {list(entries[name].shape)}, but config.json means {list(wanted[now].shape)}"
            )
            raise CheckpointError(f"{what}; {ASTRAY}")
    return found, sorted(idle)


def meta(build: Callable[[], nn.Module]) -> nn.Module:
    """A model of which nothing but the shapes is there."""
    with torch.device("meta"):
        return build()


def _today(family: Family, name: str) -> str:
    for old, new in family.aliases.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
