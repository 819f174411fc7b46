"""Verbs that ask a run: evaluate, predict, look, doctor."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from rich.markup import escape
from rich.table import Table

from regard.cli.flags import as_flag
from regard.cli.shared import err, out, run_of, write_text
from regard.config import Config, DecodeConfig, Split
from regard.config.task import Counted
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.pipeline import Pipeline, Reply
    from regard.pipeline.rewrite import Rewriter

AT_ONCE = 256  # inputs answered together


class EvaluateOptions(DecodeConfig):
    data: tuple[str, ...] = ()
    """Files to evaluate on instead of the run's own split: two line-aligned files, one .tsv or one .jsonl."""
    split: Split = "test"
    """Which split of the run's own data."""
    alignment: int = Field(0, ge=0)
    """Also the alignment error rate on so many phrases, where the true alignment is known: made = "spoken"."""
    free_running: bool = False
    """Also the perplexity of a decoder that hears itself; of systems that rewrite."""
    threshold: float | None = None
    """By how much better no answer must be than the best; of runs whose questions may have none."""
    counted: Counted | None = None
    """What is counted of running text, instead of what task.counted of the recipe says."""
    json_: bool = Field(False, alias="json")
    """Print JSON alone."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""
    arithmetic: Literal["fp32", "bf16", "int8"] = "fp32"
    """bf16: 16 bits, for a GPU. int8: products in whole numbers, for a CPU. Both are quicker and not quite the same."""


def evaluate(argv: list[str]) -> None:
    folder, _, options, how = run_of(argv, EvaluateOptions)
    from regard import run

    console = err if options.json_ else out
    found = run.evaluate(
        folder, console, split=options.split, files=options.data, device=options.device,
        arithmetic=options.arithmetic, how=how,
    )  # fmt: skip
    if options.alignment:
        from regard.alignment import measure_alignment
        from regard.pipeline.rewrite import load_rewriter

        model = load_rewriter(folder, device=options.device, arithmetic=options.arithmetic)
        found["alignment_error"] = measure_alignment(model, options.alignment)
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


class PredictOptions(DecodeConfig):
    input: str = ""
    """A file of inputs that are numbers, instead of words or lines: x of an .npz, idx images, or the test split of a
    .mat."""
    json_: bool = Field(False, alias="json")
    """One JSON object a line: source, answers, scores."""
    stream: bool = False
    """Answer each line as soon as it is read, word by word where the system can, instead of some hundreds at a time."""
    prefix: str = ""
    """Words that every answer begins with."""
    top: int = Field(5, ge=1)
    """So many likeliest words for a mask, labels, or answers to a question."""
    threshold: float | None = None
    """By how much better no answer must be than the best; of runs whose questions may have none."""
    embed: bool = False
    """The vector of each text instead of an answer; of systems with one vocabulary."""
    pooling: Literal["mean", "first"] = "mean"
    """What that vector is made of: the mean of all tokens, or the first."""
    choices: tuple[str, ...] = ()
    """Continuations to rank by their likelihood, a token on average, each behind the input and a space; of systems that
    go on with a text."""
    shots: str = ""
    """A file of demonstrations to put before each input: question, tab and answer on each line."""
    score: bool = False
    """Inputs are source TAB target: print the log-probability of the target, whole and token by token. Nothing is
    searched for, so that no setting of a search goes with it."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""
    arithmetic: Literal["fp32", "bf16", "int8"] = "fp32"
    """bf16: 16 bits, for a GPU. int8: products in whole numbers, for a CPU. Both are quicker and not quite the same."""


def predict(argv: list[str]) -> None:
    folder, texts, options, how = run_of(argv, PredictOptions, inputs=True)
    if options.score and how:
        name = as_flag(next(iter(how)))
        raise ConfigError(f"{name}: with --score a given target is measured, and none is looked for; leave either out")
    from regard.pipeline import load
    from regard.pipeline.rewrite import load_rewriter

    model = (load_rewriter if options.score else load)(folder, device=options.device, arithmetic=options.arithmetic)
    if options.input and texts:
        raise ConfigError(f"{texts[0]!r}: inputs come from {options.input}; leave out either")
    given = model.inputs(Path(options.input)) if options.input else texts
    keyboard = not given and sys.stdin.isatty()
    if keyboard:
        err.print("reading lines from the keyboard; end with Ctrl-D")
    at_once = 1 if options.stream or keyboard else AT_ONCE
    done = 0
    with nullcontext() if out.is_terminal else err.status("answering") as status:
        for block in _blocks(_checked(given or _lines(sys.stdin.buffer), model, options), at_once):
            if options.score:
                _print_scores(model, block, options.json_)  # type: ignore[arg-type]
            elif options.stream and not options.json_:
                _print_pieces(model, block, how)
            else:
                for reply in model.ask(block, **how):
                    print(_json(reply) if options.json_ else reply.text)
            sys.stdout.flush()
            done += len(block)
            if status is not None:
                status.update(f"{done:,} answered")


def _print_pieces(model: Pipeline, block: list[str], how: dict[str, Any]) -> None:
    for text in block:
        for piece in model.pieces(text, **how):
            print(piece, end="", flush=True)
        print()


def _lines(file: Iterable[bytes]) -> Iterator[str]:
    for number, raw in enumerate(file, 1):
        try:
            yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number} of standard input is not UTF-8 (byte {error.start}); "
                "convert it first, for example with iconv"
            ) from None


def _checked(texts: Iterable[str], model: Pipeline, options: PredictOptions) -> Iterator[str]:
    """The inputs as far as they can be answered: the first that cannot ends them with its sentence."""
    for number, text in enumerate(texts, 1):
        source, tab, _ = text.partition("\t")
        if options.score and not tab:
            raise DataError(f"input {number} has no tab; with --score write source, a tab and the target")
        if not options.embed:  # any text has a vector
            model.check(source if options.score else text, number)
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


def _json(reply: Reply) -> str:
    return json.dumps(reply.json, ensure_ascii=False)


def _print_scores(model: Rewriter, block: list[str], as_json: bool) -> None:
    pairs = [(source, target) for source, _, target in (text.partition("\t") for text in block)]
    for (source, target), line in zip(pairs, model.score(pairs), strict=True):
        if as_json:
            found = {"source": source, "target": target, "logprob": sum(line), "tokens": line}
            print(json.dumps(found, ensure_ascii=False))
        else:
            print(f"{sum(line):.4f}\t{' '.join(f'{value:.4f}' for value in line)}")


class LookOptions(DecodeConfig):
    png: str | None = None
    """Write FILE.png and FILE.svg."""
    svg: str | None = None
    """The same as --png: both are written."""
    html: str | None = None
    """Write the explorer as one self-contained page, which opens from disk."""
    json_: bool = Field(False, alias="json")
    """Print the weights as JSON."""
    attention: str | None = None
    """Which attention; the last one that looks from target to source when left out."""
    head: int | None = None
    """Which head; the mean of all when left out."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""


def look(argv: list[str]) -> None:
    folder, texts, options, how = run_of(argv, LookOptions, inputs=True)
    from regard.core.watch import attentions
    from regard.pipeline import load
    from regard.view.contract import trace_of
    from regard.view.terminal import draw

    model = load(folder, device=options.device)
    attentions(model.model)  # where there are none, whatever else was asked need not be mended
    if len(texts) != 1:
        raise ConfigError(
            f'look takes one input, but {len(texts)} came; write it in quotes: regard look {folder} "two hundred"'
        )
    trace = trace_of(model, texts[0], **how)
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

        write_text(Path(options.html), page(trace))
        written.append(Path(options.html))
    for path in written:
        (err if options.json_ else out).print(f"{path} written", markup=False, soft_wrap=True)
    if options.json_:
        print(json.dumps(trace.to_json(), ensure_ascii=False))
    elif not written:
        out.print(draw(trace, name=options.attention, head=options.head))


class DoctorOptions(Config):
    json_: bool = Field(False, alias="json")
    """Print JSON alone."""


def doctor(argv: list[str]) -> int:
    folder, _, options, _ = run_of(argv, DoctorOptions)
    from regard.doctor import examine

    return examine(folder, out, as_json=options.json_)
