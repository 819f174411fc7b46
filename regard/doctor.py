"""`regard doctor RUN`: the laws, on a user's own model, and what it stands on."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from regard import __version__
from regard.cases import make_case
from regard.errors import DataError
from regard.fast import Unbuilt, library
from regard.laws import excused, laws_of
from regard.pipeline import Pipeline, Reply, load

TIE = 1e-4  # of scores


def examine(folder: Path, console: Console, *, as_json: bool = False) -> int:
    """Prints a table; returns 0 when every law holds and 1 otherwise."""
    pipeline = load(folder, device="cpu")
    found = []
    quiet = as_json or not console.is_terminal
    config = pipeline.recipe.model
    vocab: int | None = config.vocab  # type: ignore[attr-defined]
    case = make_case(pipeline.model, vocab, source_vocab=getattr(config, "source_vocab", None))
    for name, law in track(laws_of(case).items(), "examining", console=console, transient=True, disable=quiet):
        if (why := excused(case, name, law)) is not None:
            found.append({"law": name, "says": law.says, "exempt": why, "holds": True})
            continue
        apart = law.check(case)
        found.append({"law": name, "says": law.says, "apart": apart, "limit": law.limit, "holds": apart <= law.limit})
    found.append(_answers(pipeline))
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print(found, console)
    return 0 if all(row["holds"] for row in found) else 1


def _answers(pipeline: Pipeline) -> dict[str, object]:
    """In the precision of use: the same texts alone, together and backwards."""
    dice = torch.Generator().manual_seed(0)
    room: int = getattr(pipeline.model, "longest", None) or 14
    drawn = (pipeline.draw(min(tokens, room), dice) for tokens in (1, 9, 3, 14, 6, 2))
    says = "answers in float32: together, in another order and one by one are the same, or tie"
    texts = [text for text in drawn if _fits(pipeline, text)]
    if not texts:
        return {"law": "answers", "says": says, "exempt": f"no text fits into {room} tokens", "holds": True}
    together, backwards = pipeline.ask(texts), pipeline.ask(texts[::-1])
    alone = [pipeline.ask([text])[0] for text in texts]
    differ = sum(
        not (_same(one, other) and _same(one, third))
        for one, other, third in zip(together, backwards[::-1], alone, strict=True)
    )
    return {"law": "answers", "says": says, "apart": float(differ), "limit": 0.0, "holds": differ == 0}


def _fits(pipeline: Pipeline, text: str) -> bool:
    """A text with its marks may be longer than what a small model reads, which it refuses."""
    try:
        pipeline.ask([text])
    except DataError:
        return False
    return True


def _same(one: Reply, other: Reply) -> bool:
    """Two ways to add up the same numbers may break a tie differently."""
    return one.text == other.text or abs(one.score - other.score) <= TIE


def _print(found: list[dict[str, object]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "law", "off by", "what it says"):
        table.add_column(column, overflow="fold")
    for row in found:
        mark = "[green]holds[/]" if row["holds"] else "[red]broken[/]"
        if "exempt" in row:
            table.add_row("exempt", str(row["law"]), "", f"{row['says']}: not here, because {row['exempt']}")
        else:
            table.add_row(mark, str(row["law"]), f"{row['apart']:.1e}", str(row["says"]))
    console.print(table)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    threads = torch.get_num_threads()
    console.print(f"regard {__version__}, torch {torch.__version__} ({build}), {threads} threads, GPU: {_gpu()}")
    console.print(f"accelerator: {_accelerator()}", markup=False, soft_wrap=True)


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _accelerator() -> str:
    """For which processor it was compiled, or why there is none."""
    try:
        return str(library().regard_processor().decode())
    except Unbuilt as error:
        return f"none ({error})"
