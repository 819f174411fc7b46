"""The command line: one function per verb.

A verb's settings are a schema, as a recipe's are: one parser, one set of error sentences, one way to print help.
Nothing here imports torch before it is needed, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from regard import __version__
from regard.config import (
    Config,
    DecodeConfig,
    Recipe,
    Split,
    arguments,
    make_recipe,
    merge,
    read_toml,
    recipe_schema,
    section,
    write_toml,
)
from regard.errors import ConfigError, DataError, RegardError, nearest
from regard.recipes import find_recipe, list_recipes, recipe_text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return _dispatch(words)
    except RegardError as error:
        if debug:
            raise
        err.print(f"regard: {escape(str(error))}", soft_wrap=True)
        return error.code
    except KeyboardInterrupt:
        err.print("regard: interrupted")
        return 130
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if debug or not error.strerror:
            raise
        err.print(f"regard: {escape(str(error.filename or 'a file'))}: {error.strerror}", soft_wrap=True)
        return 1


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        _print_verbs()
        return 0 if words else 2
    if words[0] == "--version":
        out.print(f"regard {__version__}")
        return 0
    name, *rest = words
    if name not in VERBS:
        raise ConfigError(f"{name!r} is no verb of regard; {nearest(name, VERBS)}")
    verb = VERBS[name]
    if any(word in ("--help", "-h") for word in rest):
        _print_help(name, verb, rest)
        return 0
    return verb.run(rest) or 0


@dataclass(frozen=True)
class Verb:
    says: str
    usage: str
    example: str
    options: type[Config]
    run: Callable[[list[str]], int | None]


class Nothing(Config):
    pass


# ------------------------------------------------------------------ recipes


def recipes(argv: list[str]) -> None:
    words, values = arguments(argv, Nothing)
    Nothing(**values)
    match words:
        case [] | ["ls"]:
            _list_recipes()
        case ["show", name]:
            print(recipe_text(name), end="")
        case ["copy", name, *rest] if len(rest) <= 1:
            target = Path(rest[0] if rest else f"{name}.toml")
            if target.exists():
                raise ConfigError(f"{target} exists already; name another file: regard recipes copy {name} FILE")
            target.write_text(recipe_text(name), "utf-8")
            out.print(f"{target} written; train it with: regard train {target}")
        case _:
            raise ConfigError(
                f"recipes {' '.join(words)}: not understood; "
                "write recipes, recipes show NAME, or recipes copy NAME [FILE]"
            )


def _list_recipes() -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("recipe", "system", "what", "machine", "minutes", "measured result"):
        table.add_column(column, overflow="fold", no_wrap=column == "recipe")
    for name in list_recipes():
        head = read_toml(find_recipe(name))
        table.add_row(name, head["system"], head["title"], head["machine"], f"{head['minutes']:g}", head["result"])
    out.print(table)


# ------------------------------------------------------------------ train


class TrainOptions(Config):
    out: str | None = None
    """The run folder to make; runs/RECIPE when left out."""
    print_config: bool = False
    """Show the resolved recipe and stop."""
    dry_run: bool = False
    """Build the data and the model, try a few steps, tell parameters, memory and expected time, and stop."""


def train(argv: list[str]) -> None:
    name, values, options, schema = _recipe_of(argv)
    recipe = make_recipe(values, schema)
    if options.print_config:
        print(write_toml(recipe), end="")
        return
    from regard import run

    if options.dry_run:
        run.rehearse(recipe, out)
        return
    folder = Path(options.out) if options.out else _free(Path("runs") / Path(name).stem)
    run.start(recipe, folder, out)
    _go_on(folder)


def _recipe_of(argv: list[str]) -> tuple[str, dict[str, Any], TrainOptions, Any]:
    """A recipe's name, its values with the flags laid over them, and the verb's own options."""
    from regard.models import schema

    name = next((word for word in argv if not word.startswith("-")), None)
    if name is None:
        raise ConfigError("train what? Name a recipe or a TOML file; regard recipes lists the shipped ones")
    values = read_toml(find_recipe(name))
    whole = recipe_schema(values.get("system", "transformer"), schema)
    words, given = arguments(argv, TrainOptions, whole)
    if words[1:]:
        raise ConfigError(f"{words[1]!r}: one recipe at a time; settings are written --section.key value")
    options = TrainOptions(**{k: given.pop(k) for k in list(given) if k in TrainOptions.model_fields})
    _check_settings(given, whole)
    return name, merge(values, given), options, schema


def _check_settings(given: dict[str, Any], whole: type[Recipe]) -> None:
    """A flag outside every section gets the sentence that names the nearest one inside."""
    known = set(TrainOptions.model_fields) | set(whole.model_fields)
    for name in given:
        if name not in known:
            inside = [
                f"{part}.{key}" for part in whole.model_fields if (s := section(whole, part)) for key in s.model_fields
            ]
            raise ConfigError(f"--{name}: no such setting; {nearest(name, [*known, *inside])}")


def resume(argv: list[str]) -> None:
    folder = _run_of(argv, Nothing)[0]
    from regard import run

    run.resume(folder, out)
    _go_on(folder)


# ------------------------------------------------------------------ evaluate


class EvaluateOptions(DecodeConfig):
    data: tuple[str, ...] = ()
    """Files to evaluate on instead of the run's own test split: two line-aligned files, one .tsv or one .jsonl."""
    split: Split = "test"
    json_: bool = Field(False, alias="json")
    """Print JSON alone."""
    device: str = "auto"


def evaluate(argv: list[str]) -> None:
    folder, _, options, how = _run_of(argv, EvaluateOptions)
    from regard import run

    found = run.evaluate(
        folder,
        out if not options.json_ else err,
        split=options.split,
        files=options.data,
        device=options.device,
        how=how,
    )
    report: dict[str, dict[str, Any]] = {
        name: {"value": float(value), "definition": getattr(value, "definition", "")} for name, value in found.items()
    }
    if options.json_:
        print(json.dumps(report, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("measure", "value", "definition"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for name, row in report.items():
        table.add_row(name, f"{row['value']:.2f}" if name != "loss" else f"{row['value']:.4f}", row["definition"])
    out.print(table)
    out.print(f"also written to {folder / 'evaluation.json'}")


# ------------------------------------------------------------------ predict


class PredictOptions(DecodeConfig):
    json_: bool = Field(False, alias="json")
    """One JSON object a line: source, answers, scores."""
    stream: bool = False
    """Answer each line as soon as it is read, instead of some hundreds at a time."""
    prefix: str = ""
    """Words that every answer begins with."""
    score: bool = False
    """Inputs are source TAB target: print the log-probability of the target instead of an answer."""
    device: str = "auto"


def predict(argv: list[str]) -> None:
    folder, texts, options, how = _run_of(argv, PredictOptions)
    from regard.pipeline import load

    model = load(folder, device=options.device)
    for block in _blocks(texts, 1 if options.stream else 256):
        if options.score:
            _print_scores(model, block)
            continue
        prefixes = [options.prefix] * len(block) if options.prefix else None
        for answer in model.answer(block, prefixes=prefixes, **how):
            _print_answer(answer, options, several="nbest" in how)


def _blocks(texts: list[str], most: int) -> Any:
    """Inputs some at a time: those of the command line, else the lines of standard input."""
    if not texts and sys.stdin.isatty():
        err.print("reading lines from the keyboard; end with Ctrl-D")
    block: list[str] = []
    for text in texts or _lines(sys.stdin.buffer):
        block.append(text)
        if len(block) == most:
            yield block
            block = []
    if block:
        yield block


def _lines(file: Any) -> Any:
    for number, raw in enumerate(file, 1):
        try:
            yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number} of standard input is not UTF-8 (byte {error.start}); "
                "convert it first, for example with iconv"
            ) from None


def _print_answer(answer: Any, options: PredictOptions, several: bool) -> None:
    if options.json_:
        found = [
            {"text": text, "score": h.score, "logprob": h.logprob, "finished": h.finished}
            for text, h in zip(answer.texts, answer.hypotheses, strict=True)
        ]
        print(json.dumps({"source": answer.source, "answers": found}, ensure_ascii=False), flush=options.stream)
    elif several:
        for text, h in zip(answer.texts, answer.hypotheses, strict=True):
            print(f"{h.score:.4f}\t{text}", flush=options.stream)
    else:
        print(answer.texts[0], flush=options.stream)


def _print_scores(model: Any, block: list[str]) -> None:
    pairs = []
    for text in block:
        source, tab, target = text.partition("\t")
        if not tab:
            raise DataError(f"{text!r}: no tab; with --score write source, a tab and the target")
        pairs.append((source, target))
    for line in model.score(pairs):
        print(f"{sum(line):.4f}\t{' '.join(f'{value:.4f}' for value in line)}")


# ------------------------------------------------------------------ look


class LookOptions(DecodeConfig):
    png: str | None = None
    """Write FILE.png and FILE.svg."""
    svg: str | None = None
    """The same as --png: both are written."""
    html: str | None = None
    """Write one self-contained page with every attention and head."""
    json_: bool = Field(False, alias="json")
    """Print the weights as JSON."""
    attention: str | None = None
    """Which attention; the last one that looks from target to source when left out."""
    head: int | None = None
    """Which head; the mean of all when left out."""
    device: str = "auto"


def look(argv: list[str]) -> None:
    folder, texts, options, how = _run_of(argv, LookOptions)
    if len(texts) != 1:
        raise ConfigError(
            f'look takes one input, but {len(texts)} came; write it in quotes: regard look {folder} "two hundred"'
        )
    from regard.pipeline import load
    from regard.view.terminal import draw

    trace = load(folder, device=options.device).look(texts[0], **how)
    if options.json_:
        print(json.dumps(trace.to_json(), ensure_ascii=False))
        return
    for stem in {s for s in (options.png, options.svg) if s}:
        from regard.view.plots import plot

        heads = None if options.head is None else [options.head]
        for path in plot(
            trace, Path(stem.removesuffix(".png").removesuffix(".svg")), name=options.attention, heads=heads
        ):
            out.print(f"{path} written")
    if options.html:
        from regard.view.html import page
        from regard.weights import write

        write(Path(options.html), page(trace).encode())
        out.print(f"{options.html} written")
    if not (options.png or options.svg or options.html):
        out.print(draw(trace, name=options.attention, head=options.head))


# ------------------------------------------------------------------ doctor and demo


class DoctorOptions(Config):
    json_: bool = Field(False, alias="json")


def doctor(argv: list[str]) -> int:
    folder, _, options, _ = _run_of(argv, DoctorOptions)
    from regard.doctor import examine

    return examine(folder, out, as_json=options.json_)


class DemoOptions(Config):
    source: str = "en"
    target: str = "de"
    """Any language that num2words and Babel know: fr, es, nl, …"""
    out: str | None = None
    steps: int | None = Field(None, ge=1)


def demo(argv: list[str]) -> None:
    words, values = arguments(argv, DemoOptions)
    if words:
        raise ConfigError(f"{words[0]!r}: demo takes settings only, for example --target fr")
    options = DemoOptions(**values)
    from regard.demo import show

    show(
        options.source,
        options.target,
        Path(options.out) if options.out else _free(Path("runs/demo")),
        options.steps,
        out,
    )


# ------------------------------------------------------------------ shared


def _run_of(argv: list[str], schema: type[Config]) -> tuple[Path, list[str], Any, dict[str, Any]]:
    """The run folder, the other words, the options, and those of them that say how to decode."""
    words, values = arguments(argv, schema)
    options = schema(**values)
    if not words:
        raise ConfigError("which run? Name its folder, for example runs/demo")
    if schema is Nothing and words[1:]:
        raise ConfigError(f"{words[1]!r}: one run folder at a time")
    how = {name: values[name] for name in values if name in DecodeConfig.model_fields}
    return Path(words[0]), words[1:], options, how


def _free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that does not exist."""
    candidates = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _go_on(folder: Path) -> None:
    out.print(f"[bold]{escape(str(folder))}[/] is ready. Go on with:")
    for command in (f"regard evaluate {folder}", f"regard predict {folder}", f"regard doctor {folder}"):
        out.print(f"  {escape(command)}")


def _print_verbs() -> None:
    out.print("[bold]regard[/]: train, ask and look into attention models\n")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, verb in VERBS.items():
        table.add_row(f"  {name}", verb.says)
    out.print(table)
    out.print(
        "\nregard VERB --help tells more. In Python: regard.load(RUN), regard.train(RECIPE), regard.watch(model)."
    )


def _print_help(name: str, verb: Verb, rest: list[str]) -> None:
    out.print(f"usage: regard {name} {escape(verb.usage)}\n\n{verb.says}\n\nexample:\n  {escape(verb.example)}\n")
    _print_settings(verb.options)
    recipe = next((word for word in rest if not word.startswith("-")), None)
    if name == "train":
        whole: type[Recipe] = Recipe
        if recipe is not None:
            from regard.models import schema

            whole = recipe_schema(read_toml(find_recipe(recipe)).get("system", "transformer"), schema)
        for part in whole.model_fields:
            inner = section(whole, part)
            if inner is not None and inner is not Config and issubclass(inner, Config):
                _print_settings(inner, f"{part}.")
        if recipe is None:
            out.print("The settings of model.* belong to a system: regard train RECIPE --help shows them.")
    out.print("--debug shows the whole trace of an error.")


def _print_settings(schema: type[Config], prefix: str = "") -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, field in schema.model_fields.items():
        default = (
            ""
            if field.is_required() or field.default in (None, "", (), False)
            else f"[dim]({escape(str(field.default))})[/]"
        )
        table.add_row(
            f"  --{prefix}{(field.alias or key).replace('_', '-')}", f"{escape(field.description or '')} {default}"
        )
    if schema.model_fields:
        out.print(table)


VERBS = {
    "demo": Verb(
        "train a small translator, score it, and show what it looks at",
        "[--target fr]",
        "regard demo --target fr",
        DemoOptions,
        demo,
    ),
    "recipes": Verb(
        "list the recipes; show or copy one",
        "[show NAME | copy NAME [FILE]]",
        "regard recipes show demo",
        Nothing,
        recipes,
    ),
    "train": Verb(
        "train a recipe: a shipped name or a TOML file",
        "RECIPE [--section.key value …] [--out RUN]",
        "regard train demo --train.steps 200 --out runs/short",
        TrainOptions,
        train,
    ),
    "resume": Verb("go on with any run, whatever stopped it", "RUN", "regard resume runs/demo", Nothing, resume),
    "evaluate": Verb(
        "the task's metrics, each with its definition",
        "RUN [--data FILE …]",
        "regard evaluate runs/demo --beam 1",
        EvaluateOptions,
        evaluate,
    ),
    "predict": Verb(
        "text in, answer out; reads lines from standard input when none is given",
        "RUN [INPUT …]",
        'regard predict runs/demo "twenty-three" --nbest 3',
        PredictOptions,
        predict,
    ),
    "look": Verb(
        "what the model looked at while it answered",
        "RUN INPUT",
        'regard look runs/demo "twenty-three" --html look.html',
        LookOptions,
        look,
    ),
    "doctor": Verb("run the laws on your own model", "RUN", "regard doctor runs/demo", DoctorOptions, doctor),
}


if __name__ == "__main__":
    sys.exit(main())
