"""Verbs that exchange weights with other programs: import, export."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from regard.cli.flags import arguments
from regard.cli.shared import Nothing, err, out, program
from regard.config import Config
from regard.errors import ConfigError, RegardError, nearest

if TYPE_CHECKING:
    from regard.interop.hf import Imported
    from regard.pipeline import Pipeline

SHOWN = 8  # names of what was not looked at, before the rest is counted
ASKED = {"masked": '"The <mask> is old."', "span": r"$'Who came?\tThe queen came.'"}  # as a shell takes them


def import_(argv: list[str]) -> None:
    words, values = arguments(argv, Nothing)
    Nothing(**values)
    source, run = _two(words, "import what, and as which run? Write: regard import DIR RUN")
    from regard.interop.engine import check_vacant
    from regard.interop.files import read_config
    from regard.interop.hf import family_of, find_folder, import_folder, write_run

    check_vacant(run)
    folder = find_folder(source)
    with err.status("reading"):
        found = import_folder(folder)
        write_run(found, run)
    _print_what_came(found, family_of(read_config(folder)).kind)
    _print_parity(found, folder, run)
    _print_ready(run, found)


def _print_what_came(found: Imported, family: str) -> None:
    from regard.interop.files import shown

    architecture, _, source = found.recipe.title.partition(" from ")
    size = sum(parameter.numel() for parameter in found.model.parameters())
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("came", escape(f"{architecture} of the family {family}, from {source}"))
    table.add_row("is now", f"a {found.recipe.system} with {size:,} parameters, task {found.recipe.task.name}")
    if found.unknown:
        rest = len(found.unknown) - SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        names = ", ".join(
            name if name.isprintable() and len(name) <= 80 else shown(name) for name in found.unknown[:SHOWN]
        )
        table.add_row("not looked at", escape(f"{names}{more}"))
    out.print(table)


def _print_ready(run: Path, found: Imported) -> None:
    guesses = getattr(found.recipe.model, "head", "") != "none"
    text = ASKED.get(found.recipe.task.name, '"a text"') if guesses else '"a text"'
    text = text if found.tokenizers.source.encode("a text") else '"0 1 2"'  # a model that came without a vocabulary
    out.print(f"{run} is ready. Go on with:", markup=False, soft_wrap=True)
    for verb, more in (("predict", f" {text}"), ("look", f" {text}"), ("doctor", "")):
        out.print(f"  {shlex.join([program(), verb, str(run)])}{more}", markup=False, soft_wrap=True)


class ExportOptions(Config):
    to: str = "hf"
    """What the folder is for: hf (Hugging Face), onnx (onnxruntime) or ctranslate2."""


def export(argv: list[str]) -> None:
    words, values = arguments(argv, ExportOptions)
    options = ExportOptions(**values)
    run, folder = _two(words, "export which run, and where to? Write: regard export RUN DIR --to onnx")
    if options.to not in EXPORTS:
        raise ConfigError(f"to: nothing is written for {options.to!r}; {nearest(options.to, EXPORTS)}")
    from regard.interop.engine import check_vacant
    from regard.pipeline import load

    check_vacant(folder)
    with err.status("reading"):
        pipeline = load(run, device="cpu")
    EXPORTS[options.to](pipeline, folder)


def _to_hf(pipeline: Pipeline, folder: Path) -> None:
    from regard.interop.hf import export_folder

    with err.status("writing"):
        export_folder(pipeline, folder)
    _print_written(folder)
    _print_parity(pipeline, folder, folder)


def _to_onnx(pipeline: Pipeline, folder: Path) -> None:
    from regard.interop.onnx import export_onnx

    with err.status("drawing the graphs"):
        check = export_onnx(pipeline, folder)
    _print_written(folder, str(check))


def _to_ctranslate2(pipeline: Pipeline, folder: Path) -> None:
    from regard.interop.ctranslate2 import export_ctranslate2

    with err.status("writing"):
        check = export_ctranslate2(pipeline, folder)
    _print_written(folder, str(check))


EXPORTS = {"hf": _to_hf, "onnx": _to_onnx, "ctranslate2": _to_ctranslate2}


# ---- what both share


def _two(words: list[str], otherwise: str) -> tuple[Path, Path]:
    if len(words) < 2:
        raise ConfigError(otherwise)
    if len(words) > 2:
        raise ConfigError(f"{words[2]!r}: two folders are wanted, and nothing else")
    return Path(words[0]), Path(words[1])


def _print_parity(ours: Pipeline | Imported, folder: Path, written: Path) -> None:
    """How near the two are, layer by layer; whoever finds them apart is told by the exit code as well."""
    from regard.interop.engine import FARTHEST
    from regard.interop.parity import report

    with err.status("comparing with transformers"):
        found = report(ours, folder)
    out.print(str(found), markup=False, soft_wrap=True)
    if found.differences:
        out.print(found.table())
    for one in found.differences:
        if not one.difference <= FARTHEST * one.scale:
            what = f"{folder} is not the same model in transformers: {one.difference:.1e} of {one.scale:.3g}"
            far = f"{what} apart after {one.where}, where at most {FARTHEST:g} of it was wanted"
            raise RegardError(f"{far}; {written} is written, but do not use it: remove it, and report this")


def _print_written(folder: Path, *said: Any) -> None:
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    for line in (f"{folder} is written: {names}", *said):
        out.print(line, markup=False, soft_wrap=True)
