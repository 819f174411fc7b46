from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from regard.cli.flags import arguments
from regard.config import (
    TASKS,
    Config,
    DecodeConfig,
    Recipe,
    TokensConfig,
    TrainConfig,
    make_recipe,
    merge,
    read_toml,
    recipe_schema,
    task_of,
    write_toml,
)
from regard.errors import CheckpointError, ConfigError, DataError, Diverged, RegardError, nearest
from regard.models import schema
from regard.models.transformer import SIZES
from regard.models.transformer import Config as TransformerConfig

LEAST: dict[str, Any] = {"system": "transformer", "data": {"made": "spoken"}}


def recipe(**settings: Any) -> Recipe:
    return make_recipe(merge(LEAST, settings), schema)


# ------------------------------------------------------------------ what is refused, and the sentence for it


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"train": {"stpes": 3}}, "train.stpes: no such setting; did you mean 'steps'?"),
        ({"trian": {"steps": 3}}, "trian: no such setting; did you mean 'train'?"),
        ({"model": {"haeds": 3}}, "model.haeds: no such setting; did you mean 'heads'?"),
        (
            {"task": {"quux": 1}},
            "task.quux: no such setting; known: bleu, entropy, forcing, forcing_decay, forcing_end, forcing_steps, "
            "free_running, name, reinforce, smoothing",
        ),
        ({"model": {"size": "bsae"}}, "model.size: no size 'bsae'; did you mean 'base'?"),
        ({"model": {"size": ["base"]}}, "model.size: no size \"['base']\"; did you mean 'base'?"),
        ({"model": {"dim": 30, "heads": 4}}, "model.heads: dim=30 does not divide into heads=4; try heads=3"),
        (
            {"model": {"dim": 30}},
            "model.heads: dim=30 does not divide into heads=8, which stands where it is left out; try heads=6",
        ),
        ({"train": {"steps": 0}}, "train.steps: must be greater than or equal to 1, but it is 0"),
        ({"train": {"rate": 0}}, "train.rate: must be greater than 0, but it is 0"),
        ({"train": {"rate": float("nan")}}, "train.rate: must be a finite number, but it is NaN"),
        ({"task": {"smoothing": 1}}, "task.smoothing: must be less than 1, but it is 1"),
        ({"decode": {"beam": 2000}}, "decode.beam: must be less than or equal to 1024, but it is 2000"),
        (
            {"decode": {"longest": 10**20}},
            f"decode.longest: must be less than or equal to 1000000, but it is {10**20}",
        ),
        (
            {"train": {"steps": "many"}},
            'train.steps: must be a valid integer, unable to parse string as an integer, but it is "many"',
        ),
        (
            {"train": {"steps": 2.5}},
            "train.steps: must be a valid integer, got a number with a fractional part, but it is 2.5",
        ),
        (
            {"train": {"compile": "maybe"}},
            'train.compile: must be a valid boolean, unable to interpret input, but it is "maybe"',
        ),
        ({"title": ["a"]}, 'title: must be a valid string, but it is ["a"]'),
        (
            {"tokens": {"kind": "bp"}},
            "tokens.kind: must be 'bpe', 'unigram', 'wordpiece', 'word' or 'char', but it is \"bp\"",
        ),
        ({"train": {"betas": [0.9]}}, "train.betas: more values are wanted than [0.9]"),
        ({"data": {"train": "abc"}}, 'data.train: must be a valid tuple, but it is "abc"'),
        (
            {"data": {"train": ["a", "b", "c"]}},
            "data.train: 3 files; write two line-aligned files, one .tsv or one .jsonl",
        ),
        (
            {"data": {"made": None}},
            'data.train: missing; write two line-aligned files, one .tsv or one .jsonl, or set made = "spoken"',
        ),
        ({"train": 3}, "train: a section, not a setting; write --train.key value"),
        ({"data": 3}, "data: a section, not a setting; write --data.key value"),
        ({"system": "transfromer"}, "system: no system 'transfromer'; did you mean 'transformer'?"),
    ],
)
def test_a_wrong_setting_is_answered_with_its_full_name(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        recipe(**wrong)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, 'system: missing; write for example system = "transformer" at the top of the recipe'),
        ({"system": "transformer"}, "data: missing; write it in the recipe"),
    ],
)
def test_what_is_missing(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_recipe(values, schema)
    assert str(error.value) == sentence


def test_settings_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        TrainConfig().steps = 3  # type: ignore[misc]


def test_each_kind_of_failure_has_its_own_exit_code() -> None:
    kinds = (RegardError, ConfigError, DataError, CheckpointError, Diverged)
    assert [kind.code for kind in kinds] == [1, 2, 3, 4, 5]


def test_the_nearest_name() -> None:
    assert nearest("haeds", ["heads", "layers"]) == "did you mean 'heads'?"
    assert nearest("cross", ["decoder.0.cross", "encoder"]) == "did you mean 'decoder.0.cross'?"
    assert nearest("quux", ["b", "a"]) == "known: a, b"
    assert nearest("quux", []) == "known: none"


# ------------------------------------------------------------------ sizes


@pytest.mark.parametrize("size", SIZES)
def test_a_size_stands_for_a_row_of_its_table(size: str) -> None:
    config = TransformerConfig(size=size)  # type: ignore[call-arg]
    assert {name: getattr(config, name) for name in SIZES[size]} == SIZES[size]
    assert config == TransformerConfig(**SIZES[size])


def test_what_is_said_beside_a_size_wins() -> None:
    config = TransformerConfig(size="base", layers=2, dropout=0.3)  # type: ignore[call-arg]
    assert (config.dim, config.layers, config.dropout) == (512, 2, 0.3)
    assert recipe(model={"size": "tiny", "heads": 8}).model == TransformerConfig(**{**SIZES["tiny"], "heads": 8})


# ------------------------------------------------------------------ the command line


class Options(Config):
    out: str | None = None
    print_config: bool = False


def parse(line: str) -> tuple[list[str], dict[str, Any]]:
    return arguments(line.split(), Options, recipe_schema("transformer", schema))


@pytest.mark.parametrize(
    ("line", "words", "values"),
    [
        ("demo more", ["demo", "more"], {}),
        ("demo --train.rate 3e-4 text", ["demo", "text"], {"train": {"rate": 3e-4}}),
        ("--train.rate=3e-4 text", ["text"], {"train": {"rate": 3e-4}}),
        ("--train.rate -1 text", ["text"], {"train": {"rate": -1}}),
        ("--out a=b", [], {"out": "a=b"}),
        ("--out=a=b", [], {"out": "a=b"}),
        ("--out=", [], {"out": ""}),
        ("--train.log-every 3", [], {"train": {"log_every": 3}}),
        ("--print-config demo", ["demo"], {"print_config": True}),
        ("--print-config false demo", ["demo"], {"print_config": False}),
        ("--print-config=false demo", ["demo"], {"print_config": False}),
        ("--train.compile --train.tensorboard true", [], {"train": {"compile": True, "tensorboard": True}}),
        ("--data.train a.en a.de --out x", [], {"data": {"train": ["a.en", "a.de"]}, "out": "x"}),
        ("--data.train=a.tsv demo", ["demo"], {"data": {"train": ["a.tsv"]}}),
        ("--data.fields 0 1", [], {"data": {"fields": [0, 1]}}),
        ("--data.fields source target", [], {"data": {"fields": ["source", "target"]}}),
        ("--train.betas 0.9 0.98", [], {"train": {"betas": [0.9, 0.98]}}),
        ("--train.betas=[0.9,0.98] demo", ["demo"], {"train": {"betas": [0.9, 0.98]}}),
        ('--data.train=["a.en","a.de"]', [], {"data": {"train": ["a.en", "a.de"]}}),
        ("demo -- --beam 5", ["demo", "--beam", "5"], {}),
        ("--data.train a -- b", ["b"], {"data": {"train": ["a"]}}),
        ("- -x", ["-", "-x"], {}),
        ("--decode.expand 4 --decode.beam 2", [], {"decode": {"expand": 4, "beam": 2}}),
        ("--nonsense 3 text", ["text"], {"nonsense": 3}),
        ("--nonsense", [], {"nonsense": True}),
    ],
)
def test_a_command_line_is_words_and_settings(line: str, words: list[str], values: dict[str, Any]) -> None:
    assert parse(line) == (words, values)


@pytest.mark.parametrize("text", ["2024-01-01", "1_0", "0x10", "1e3", "true", "07", "[a]", '"q"', "inf"])
def test_a_setting_of_text_is_taken_as_it_is(text: str) -> None:
    """A folder called 1_0 is not a folder called 10."""
    assert parse(f"--out {text} --data.valid {text} x") == ([], {"out": text, "data": {"valid": [text, "x"]}})


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--out", "--out: a value is missing; write --out VALUE"),
        ("--out --print-config", "--out: a value is missing; write --out VALUE"),
        ("--data.train --out x", "--data.train: a value is missing; write --data.train VALUE"),
        ("--train.log-every", "--train.log-every: a value is missing; write --train.log-every VALUE"),
        ("--train.steps 4 --train.steps.more 3", "train.steps.more: steps is a setting, not a section"),
    ],
)
def test_a_command_line_that_cannot_be_read(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(line)
    assert str(error.value) == sentence


def test_flags_lie_over_the_file() -> None:
    file = {"title": "a", "train": {"steps": 3, "rate": 0.1}}
    assert merge(file, {"train": {"steps": 5}, "out": "x"}) == {
        "title": "a",
        "train": {"steps": 5, "rate": 0.1},
        "out": "x",
    }
    assert file["train"] == {"steps": 3, "rate": 0.1}  # and leave it alone
    with pytest.raises(ConfigError, match=r"^train: a section, not a setting; write --train\.key value$"):
        merge(file, {"train": 5})


# ------------------------------------------------------------------ there and back


def values_of(kind: Any, bounds: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Anything that a type of the schema allows."""
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(*(values_of(k, bounds) for k in get_args(kind)))
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            return st.lists(values_of(inner[0], {}), max_size=2).map(tuple)
        return st.tuples(*(values_of(k, {}) for k in inner))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return sections(kind)
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        str: st.text(max_size=8),
        NoneType: st.none(),
        int: st.integers(low, None if high is None else high - ("lt" in bounds)),
        float: st.floats(
            low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds, allow_nan=False, allow_infinity=False
        ),
    }
    return plain[kind]


def bounds_of(field: FieldInfo) -> dict[str, Any]:
    kinds = {annotated_types.Ge: "ge", annotated_types.Gt: "gt", annotated_types.Le: "le", annotated_types.Lt: "lt"}
    return {kinds[type(m)]: getattr(m, kinds[type(m)]) for m in field.metadata if type(m) in kinds}


def sections(kind: type[BaseModel], *, without: tuple[str, ...] = ()) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: field for name, field in kind.model_fields.items() if name not in without}
    return st.fixed_dictionaries(
        {}, optional={name: values_of(f.annotation, bounds_of(f)) for name, f in fields.items()}
    )


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    values = draw(sections(Recipe, without=("system", "data", "task", "model")))
    name = draw(st.sampled_from(sorted(TASKS)))
    kind, settings = TASKS[name]
    model = draw(sections(TransformerConfig, without=("dim", "heads", "source_vocab")))
    heads = draw(st.integers(1, 16))
    data = draw(sections(kind))
    data |= {} if data.get("made") or data.get("train") else {"train": ["some", "file"]}
    if folds := data.get("folds"):
        data |= {"folds": max(folds, 3), "fold": data.get("fold", 0) % max(folds, 3)}
    task = {**draw(sections(settings)), "name": name}
    decode = values.get("decode", {})
    if 0 < decode.get("longest", 0) < decode.get("shortest", 0):
        del decode["shortest"]
    whole = {**values, "data": data, "task": task}
    return {**whole, "system": "transformer", "model": {**model, "heads": heads, "dim": heads * 4}}


@settings(max_examples=80)
@given(recipes())
def test_what_is_printed_reads_back_the_same(values: dict[str, Any]) -> None:
    whole = recipe_schema("transformer", schema, task_of(values))  # whether or not it can do the task
    one = whole(**values)
    assert whole(**tomllib.loads(write_toml(one))) == one
    assert type(one.model) is TransformerConfig


def test_shortest_may_not_exceed_longest() -> None:
    assert recipe(decode={"shortest": 9}).decode.shortest == 9
    with pytest.raises(ConfigError, match=r"decode.shortest: 9 is more than longest = 5; write a smaller one"):
        recipe(decode={"shortest": 9, "longest": 5})


def test_what_is_printed_is_the_whole_of_it() -> None:
    """A run's recipe must mean the same when a default has changed since."""
    told = {path for path, _ in leaves(tomllib.loads(write_toml(recipe())))}
    settings = {path for path, value in leaves(recipe().model_dump()) if value is not None}
    assert told == settings
    assert {"train.steps", "model.dim", "decode.beam", "tokens.kind"} <= told


@settings(max_examples=80)
@given(recipes())
def test_flags_say_whatever_a_file_says(values: dict[str, Any]) -> None:
    whole = recipe_schema("transformer", schema, task_of(values))
    one = whole(**values)
    flags = []
    for path, value in leaves(one.model_dump(mode="json", exclude_none=True)):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        flags.append(f"--{path.replace('_', '-')}={text}")  # JSON is TOML, but for that one letter
    words, found = arguments(flags, whole)
    assert words == []
    assert whole(**found) == one


def leaves(tree: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        found += leaves(value, f"{above}{name}.") if isinstance(value, dict) else [(above + name, value)]
    return found


def test_a_recipe_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(write_toml(recipe(title="Zwölf – 十二")), "utf-8")
    assert make_recipe(read_toml(path), schema) == recipe(title="Zwölf – 十二")


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    with pytest.raises(ConfigError, match=r"recipe.toml: no such recipe file$"):
        read_toml(path)
    for content in (b"train = {", b"\xff\xfe"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"recipe.toml: cannot be read as TOML: "):
            read_toml(path)
    with pytest.raises(ConfigError, match=r": cannot be read as TOML: "):
        read_toml(tmp_path)


def test_every_setting_has_a_default_that_it_accepts() -> None:
    for part in (TokensConfig, TrainConfig, DecodeConfig, TransformerConfig, *(task for _, task in TASKS.values())):
        assert part(**part().model_dump()) == part()
    for data, _ in TASKS.values():
        some = data(train=("file",))
        assert data(**some.model_dump()) == some
    assert DecodeConfig().expand is None


@pytest.mark.parametrize("module", ["regard", "regard.config", "regard.cli", "regard.models"])
def test_importing_is_quick_because_torch_stays_out(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False False\n"
