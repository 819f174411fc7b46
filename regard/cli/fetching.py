"""The verb that gets data sets: fetch."""

from __future__ import annotations

import os
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from regard.cli.flags import arguments
from regard.cli.shared import err, out
from regard.config import Config
from regard.data.corpora import CORPORA, Corpus
from regard.errors import ConfigError, nearest


class FetchOptions(Config):
    to: str | None = None
    """The folder of data sets, each in a folder of its own; REGARD_DATA when left out."""


def fetch(argv: list[str]) -> None:
    words, values = arguments(argv, FetchOptions)
    options = FetchOptions(**values)
    for name in words:
        if name not in CORPORA:
            raise ConfigError(f"no data set {name!r}; {nearest(name, CORPORA)}")
    if not words:
        _list()
        return
    folder = options.to or os.environ.get("REGARD_DATA")
    if not folder:
        raise ConfigError("fetch it where to? Set REGARD_DATA to the folder of your data sets, or write --to FOLDER")
    for name in words:
        _get(name, CORPORA[name], Path(folder))


def _get(name: str, corpus: Corpus, folder: Path) -> None:
    from regard.data.fetch import fetch

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        new = fetch(
            corpus, folder, lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        )
    known = (
        "as it should be" if corpus.checked else "large enough, but no hashes of its files are known to check them by"
    )
    told = "\n".join(f"{path} written" for path in new) or f"{folder} has {name} already, {known}"
    about = f"{corpus.says}, from {corpus.home}; licence: {corpus.licence}"
    out.print(f"{told}\n{about}", markup=False, soft_wrap=True)


def _list() -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what", "licence", "from"):
        table.add_column(column, overflow="fold")
    for name, corpus in CORPORA.items():
        table.add_row(name, corpus.says, corpus.licence, corpus.home)
    out.print(table)
    out.print("\nregard fetch NAME gets one.")
