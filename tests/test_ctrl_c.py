"""Ctrl-C at any moment: one line, exit code 130, also while modules are still being imported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import regard

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
STARTS = {
    "script": "from {0} import {1}\nsys.exit({1}())".format(*PROJECT["scripts"]["regard"].split(":")),
    "module": "runpy.run_module('regard', run_name='__main__', alter_sys=True)",
}
LISTENING = """
import os, runpy, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            for _ in range({times}):
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt:
                    pass  # as some modules do

signal.signal(signal.SIGINT, signal.{heard})
sys.meta_path.insert(0, CtrlC())
sys.argv = ["regard", *{words!r}]
"""


def ctrl_c(
    name: str, *words: str | Path, start: str = "script", times: int = 1, heard: str = "default_int_handler", **how: Any
) -> subprocess.CompletedProcess[str]:
    """A command that is interrupted when it begins to import a module, which swallows what is raised in it."""
    code = LISTENING.format(name=name, words=[*map(str, words)], times=times, heard=heard) + STARTS[start]
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **how)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["regard.cli", "pydantic"])
def test_while_the_command_line_is_imported_it_ends_at_once(name: str, start: str) -> None:
    found = ctrl_c(name, "--version", start=start)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "regard: interrupted\n")


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_on_the_way_to_torch_it_ends_at_once(name: str) -> None:
    found = ctrl_c(name, "predict", "nowhere", "five")
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "regard: interrupted\n")


def test_whoever_wants_it_ignored_is_obeyed() -> None:
    found = ctrl_c("pydantic", "--version", heard="SIG_IGN")
    assert (found.returncode, found.stdout) == (0, f"regard {regard.__version__}\n")
