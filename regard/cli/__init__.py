"""The command line: one function per verb.

A verb's settings are a schema, as a recipe's are: one parser, one set of error sentences, one way to print help.
Nothing here imports torch before it is needed, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.markup import escape

from regard import __version__
from regard.cli.asking import (
    DoctorOptions,
    EvaluateOptions,
    LookOptions,
    PredictOptions,
    doctor,
    evaluate,
    look,
    predict,
)
from regard.cli.exchanging import ExportOptions, export, import_
from regard.cli.fetching import FetchOptions, fetch
from regard.cli.flags import arguments, split_at_dashes
from regard.cli.help import Verb, print_help, print_recipe, print_verbs
from regard.cli.making import DemoOptions, TrainOptions, demo, recipes, resume, train
from regard.cli.reproducing import ReproduceOptions, reproduce
from regard.cli.serving import ServeOptions, serve
from regard.cli.shared import Nothing, err, out
from regard.config import Recipe, make_recipe, read_toml
from regard.errors import ConfigError, RegardError, nearest
from regard.recipes import find_recipe


def main(argv: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    flags, texts = split_at_dashes(given)
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
    flags, _ = split_at_dashes(rest)
    if "--help" in flags or "-h" in flags:
        _help(name, [word for word in flags if word not in ("--help", "-h")])
        return 0
    return VERBS[name].run(rest) or 0


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
    "fetch": Verb(
        "get a data set by its name, or list those there are",
        "[NAME …] [--to FOLDER]",
        "regard fetch ptb --to data",
        FetchOptions,
        fetch,
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
    "serve": Verb(
        "an HTTP API and the page that looks into a run",
        "RUN … [--port N] [--host HOST --api-key KEY]",
        "regard serve runs/demo",
        ServeOptions,
        serve,
    ),
    "doctor": Verb("run the laws on your own model", "RUN", "regard doctor runs/demo", DoctorOptions, doctor),
    "import": Verb(
        "a Hugging Face folder, or a model of their hub, as a run",
        "DIR RUN",
        "regard import distilbert-tiny runs/distilbert",
        Nothing,
        import_,
    ),
    "export": Verb(
        "a run as a folder of another program",
        "RUN DIR [--to hf | onnx | ctranslate2]",
        "regard export runs/demo demo-ctranslate2 --to ctranslate2",
        ExportOptions,
        export,
    ),
    "reproduce": Verb(
        "a whole table of runs: published ones beside ours",
        "TABLE [--data NAME] [--quick] [--out FOLDER]",
        "regard reproduce attention --show",
        ReproduceOptions,
        reproduce,
    ),
}
