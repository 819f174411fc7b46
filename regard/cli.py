"""The command line: one function per verb.

A verb's settings are a schema, as a recipe's are: one parser, one set of error sentences, one way to print help.
Nothing here imports torch before it is needed, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
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
from regard.help import Verb, print_help, print_recipe, print_verbs
from regard.recipes import find_recipe, list_recipes, recipe_text

if TYPE_CHECKING:
    from regard.pipeline import Pipeline
    from regard.tasks.rewrite import Answer

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AT_ONCE = 256  # inputs answered together


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    flags, texts = _split_at_dashes(given)
    debug = "--debug" in flags
    try:
        code = _dispatch([word for word in flags if word != "--debug"] + texts)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (RegardError, OSError) as error:
        if debug:
            raise
        if isinstance(error, RegardError):
            return _fail(str(error), error.code)
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}; choose another place or make room", 1)


def _fail(sentence: str, code: int) -> int:
    sys.stdout.flush()
    err.print(f"regard: {escape(sentence)}", soft_wrap=True)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print_verbs(VERBS, out)
        return 0 if words else 2
    if words[0] == "--version":
        out.print(f"regard {__version__}")
        return 0
    name, *rest = words
    if name not in VERBS:
        raise ConfigError(f"{name!r} is no verb of regard; {nearest(name, VERBS)}")
    flags, _ = _split_at_dashes(rest)
    if "--help" in flags or "-h" in flags:
        _help(name, [word for word in flags if word not in ("--help", "-h")])
        return 0
    return VERBS[name].run(rest) or 0


def _split_at_dashes(words: list[str]) -> tuple[list[str], list[str]]:
    """What follows a lone -- is text, even if it begins with dashes."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end:]


def _help(name: str, words: list[str]) -> None:
    print_help(name, VERBS[name], out)
    if name == "train":
        _help_train(words)
    out.print("\n--debug shows the whole trace of an error.")


def _help_train(argv: list[str]) -> None:
    words, _ = arguments(argv, TrainOptions, Recipe)
    if not words:
        print_recipe(Recipe, out)
        out.print("\nThe settings of model.* belong to a system: regard train RECIPE --help shows them.")
        return
    from regard.models import schema

    recipe = make_recipe(read_toml(find_recipe(words[0])), schema)
    print_recipe(type(recipe), out, recipe)


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
            _copy_recipe(name, Path(rest[0] if rest else f"{name}.toml"))
        case _:
            raise ConfigError(
                f"recipes {' '.join(words)}: not understood; "
                "write recipes, recipes show NAME, or recipes copy NAME [FILE]"
            )


def _copy_recipe(name: str, target: Path) -> None:
    text = recipe_text(name)
    if target.exists():
        raise ConfigError(f"{target} exists already; name another file: regard recipes copy {name} FILE")
    target.write_text(text, "utf-8")
    out.print(f"{target} written; train it with: regard train {target}", markup=False, soft_wrap=True)


def _list_recipes() -> None:
    for name in list_recipes():
        head = read_toml(find_recipe(name))
        out.print(f"[bold]{name}[/]  [dim]{head['system']}, {head['machine']}, {head['minutes']:g} minutes[/]")
        out.print(Padding(escape(f"{head['title']}\nresult: {head['result']}"), (0, 0, 0, 2)))
    out.print("\nregard recipes show NAME prints one; regard recipes copy NAME makes it yours.")


# ------------------------------------------------------------------ train, resume


class TrainOptions(Config):
    out: str | None = None
    """The run folder to make; runs/RECIPE when left out."""
    print_config: bool = False
    """Show the resolved recipe and stop."""
    dry_run: bool = False
    """Build data and model, try a few steps, tell parameters, memory and expected time, and leave nothing behind."""


def train(argv: list[str]) -> None:
    name, recipe, options = _recipe_of(argv)
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


def _recipe_of(argv: list[str]) -> tuple[str, Recipe, TrainOptions]:
    """A recipe by name, with the flags laid over it, and the verb's own options."""
    words, _ = arguments(argv, TrainOptions, Recipe)
    if not words:
        raise ConfigError("train what? Name a recipe or a TOML file; regard recipes lists the shipped ones")
    values = read_toml(find_recipe(words[0]))
    from regard.models import schema

    whole = recipe_schema(str(values.get("system", "transformer")), schema)
    words, given = arguments(argv, TrainOptions, whole)
    if words[1:]:
        raise ConfigError(f"{words[1]!r}: one recipe at a time; settings are written --section.key value")
    options = TrainOptions(**{key: given.pop(key) for key in list(given) if key in TrainOptions.model_fields})
    _refuse_unknown(given, whole)
    return words[0], make_recipe(merge(values, given), schema), options


def _refuse_unknown(given: dict[str, Any], whole: type[Recipe]) -> None:
    """A flag outside every section gets the sentence that names the nearest one inside."""
    known = {key: key for key in (*TrainOptions.model_fields, *whole.model_fields)}
    sections = {part: inner for part in whole.model_fields if (inner := section(whole, part))}
    inside = {key: f"{part}.{key}" for part, inner in sections.items() for key in inner.model_fields}
    for name in given:
        if name not in known:
            close = get_close_matches(name, [*known, *inside], 1)
            hint = f"did you mean --{(known | inside)[close[0]]}?" if close else "settings are written --section.key"
            raise ConfigError(f"--{name}: no such setting; {hint}")


def resume(argv: list[str]) -> None:
    folder, *_ = _run_of(argv, Nothing)
    from regard import run

    run.resume(folder, out)
    _go_on(folder)


def _free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that does not exist."""
    candidates = (folder if n == 1 else folder.with_name(f"{folder.name}-{n}") for n in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


def _go_on(folder: Path) -> None:
    out.print(f"{folder} is ready. Go on with:", markup=False, soft_wrap=True)
    for verb in ("evaluate", "predict", "doctor"):
        out.print(f"  {shlex.join(['regard', verb, str(folder)])}", markup=False, soft_wrap=True)


# ------------------------------------------------------------------ evaluate


class EvaluateOptions(DecodeConfig):
    data: tuple[str, ...] = ()
    """Files to evaluate on instead of the run's own split: two line-aligned files, one .tsv or one .jsonl."""
    split: Split = "test"
    """Which split of the run's own data."""
    json_: bool = False
    """Print JSON alone."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""


def evaluate(argv: list[str]) -> None:
    folder, _, options, how = _run_of(argv, EvaluateOptions)
    from regard import run

    console = err if options.json_ else out
    found = run.evaluate(
        folder, console, split=options.split, files=options.data, device=options.device, how=how
    )  # fmt: skip
    if options.json_:
        print(json.dumps(run.report(found), ensure_ascii=False))
    else:
        _print_measures(run.report(found))


def _print_measures(report: dict[str, dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("measure", "value", "definition"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for name, row in report.items():
        table.add_row(
            name, f"{row['value']:.4g}" if name == "loss" else f"{row['value']:.2f}", escape(row["definition"])
        )
    out.print(table)


# ------------------------------------------------------------------ predict


class PredictOptions(DecodeConfig):
    json_: bool = False
    """One JSON object a line: source, answers, scores."""
    stream: bool = False
    """Answer each line as soon as it is read, instead of some hundreds at a time."""
    prefix: str = ""
    """Words that every answer begins with."""
    score: bool = False
    """Inputs are source TAB target: print the log-probability of the target, whole and token by token."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""


def predict(argv: list[str]) -> None:
    folder, texts, options, how = _run_of(argv, PredictOptions, inputs=True)
    from regard.pipeline import load

    model = load(folder, device=options.device)
    keyboard = not texts and sys.stdin.isatty()
    if keyboard:
        err.print("reading lines from the keyboard; end with Ctrl-D")
    at_once = 1 if options.stream or keyboard else AT_ONCE
    done = 0
    with nullcontext() if out.is_terminal else err.status("answering") as status:
        for block in _blocks(_checked(texts or _lines(sys.stdin.buffer), model, options.score), at_once):
            if options.score:
                _print_scores(model, block)
            else:
                prefixes = [options.prefix] * len(block) if options.prefix else None
                for answer in model.answer(block, prefixes=prefixes, **how):
                    _print_answer(answer, options, several="nbest" in how)
            sys.stdout.flush()
            done += len(block)
            if status is not None:
                status.update(f"{done:,} answered")


def _lines(file: Iterable[bytes]) -> Iterator[str]:
    for number, raw in enumerate(file, 1):
        try:
            yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number} of standard input is not UTF-8 (byte {error.start}); "
                "convert it first, for example with iconv"
            ) from None


def _checked(texts: Iterable[str], model: Pipeline, score: bool) -> Iterator[str]:
    """The inputs as far as they can be answered: the first that cannot ends them with its sentence."""
    for number, text in enumerate(texts, 1):
        source, tab, _ = text.partition("\t")
        if score and not tab:
            raise DataError(f"input {number} has no tab; with --score write source, a tab and the target")
        model.check(source if score else text, number)
        yield text


def _blocks(texts: Iterator[str], most: int) -> Iterator[list[str]]:
    """Inputs some at a time. Those before a bad one are still answered."""
    block: list[str] = []
    trouble: DataError | None = None
    try:
        for text in texts:
            block.append(text)
            if len(block) == most:
                yield block
                block = []
    except DataError as error:
        trouble = error
    if block:
        yield block
    if trouble is not None:
        raise trouble


def _print_answer(answer: Answer, options: PredictOptions, several: bool) -> None:
    found = list(zip(answer.texts, answer.hypotheses, strict=True))
    if options.json_:
        answers = [{"text": text, "score": h.score, "logprob": h.logprob, "finished": h.finished} for text, h in found]
        print(json.dumps({"source": answer.source, "answers": answers}, ensure_ascii=False))
    elif several:
        for text, h in found:
            print(f"{h.score:.4f}\t{text}")
    else:
        print(answer.texts[0])


def _print_scores(model: Pipeline, block: list[str]) -> None:
    pairs = [(source, target) for source, _, target in (text.partition("\t") for text in block)]
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
    json_: bool = False
    """Print the weights as JSON."""
    attention: str | None = None
    """Which attention; the last one that looks from target to source when left out."""
    head: int | None = None
    """Which head; the mean of all when left out."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""


def look(argv: list[str]) -> None:
    folder, texts, options, how = _run_of(argv, LookOptions, inputs=True)
    if len(texts) != 1:
        raise ConfigError(
            f'look takes one input, but {len(texts)} came; write it in quotes: regard look {folder} "two hundred"'
        )
    from regard.pipeline import load
    from regard.view.terminal import draw

    trace = load(folder, device=options.device).look(texts[0], **how)
    written: list[Path] = []
    if options.png or options.svg:
        from regard.view.plots import plot

        stems = {Path(name).with_suffix("") if name.endswith((".png", ".svg")) else Path(name)
                 for name in (options.png, options.svg) if name}  # fmt: skip
        heads = None if options.head is None else [options.head]
        for stem in sorted(stems):
            written += plot(trace, stem, name=options.attention, heads=heads)
    if options.html:
        from regard.view.html import page
        from regard.weights import write

        write(Path(options.html), page(trace).encode())
        written.append(Path(options.html))
    for path in written:
        (err if options.json_ else out).print(f"{path} written", markup=False, soft_wrap=True)
    if options.json_:
        print(json.dumps(trace.to_json(), ensure_ascii=False))
    elif not written:
        out.print(draw(trace, name=options.attention, head=options.head))


# ------------------------------------------------------------------ doctor, demo


class DoctorOptions(Config):
    json_: bool = False
    """Print JSON alone."""


def doctor(argv: list[str]) -> int:
    folder, _, options, _ = _run_of(argv, DoctorOptions)
    from regard.doctor import examine

    return examine(folder, out, as_json=options.json_)


class DemoOptions(Config):
    source: str = "en"
    """The language to read."""
    target: str = "de"
    """The language to write: any that num2words and Babel know, such as fr, es or nl."""
    out: str | None = None
    """The run folder to make; runs/demo when left out."""
    steps: int | None = Field(None, ge=1)
    """Train for so many steps instead of the recipe's."""


def demo(argv: list[str]) -> None:
    words, values = arguments(argv, DemoOptions)
    if words:
        raise ConfigError(f"{words[0]!r}: demo takes settings only, for example --target fr")
    options = DemoOptions(**values)
    from regard.demo import show

    folder = Path(options.out) if options.out else _free(Path("runs/demo"))
    show((options.source, options.target), folder, options.steps, out)


# ------------------------------------------------------------------ shared


def _run_of(
    argv: list[str], schema: type[Config], *, inputs: bool = False
) -> tuple[Path, list[str], Any, dict[str, Any]]:
    """The run folder, the inputs, the options, and those of them that say how to decode."""
    flags, texts = _split_at_dashes(argv)
    own_name = ["--json_" if word == "--json" else word for word in flags]  # pydantic has a method called json
    words, values = arguments([*own_name, *texts], schema)
    options = schema(**values)
    if not words:
        raise ConfigError("which run? Name its folder, for example runs/demo")
    if words[1:] and not inputs:
        raise ConfigError(f"{words[1]!r}: one run folder at a time, and nothing else")
    how = {name: values[name] for name in values if name in DecodeConfig.model_fields}
    clean = [word.encode("utf-8", "replace").decode() for word in words[1:]]  # bytes that are no UTF-8 become ?
    return Path(words[0]), clean, options, how


VERBS = {
    "demo": Verb(
        "train a small translator, score it, and show what it looks at",
        "[--target LANGUAGE] [--steps N] [--out RUN]",
        "regard demo --target fr",
        DemoOptions,
        demo,
    ),
    "recipes": Verb(
        "list the recipes; show or copy one",
        "[ls | show NAME | copy NAME [FILE]]",
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
