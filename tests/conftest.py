"""What all tests share: where the data is and whether it was used, one seed, few threads, and when storms run."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest

if os.environ.get("REGARD_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, as parts of PyTorch do

import torch

pytest_plugins = ["pytester"]

DATA = Path(os.environ.get("REGARD_DATA") or Path(__file__).parents[2] / "shared" / "data")

hypothesis.settings.register_profile("law", derandomize=True, deadline=None, max_examples=60, database=None)
hypothesis.settings.load_profile("law")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_dir() -> Callable[[str], Path]:
    """data_dir("multi30k") is the folder of that data set; a test that asks for one that is absent is skipped."""

    def find(name: str) -> Path:
        if not (DATA / name).is_dir():
            pytest.skip(f"no data set {name!r} in {DATA}; set REGARD_DATA to the folder that holds it")
        return DATA / name

    return find


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must succeed; gives what it prints."""
    from regard.cli import main

    def run(*words: str | Path) -> str:
        capsys.readouterr()
        code = main([*map(str, words)])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail with this code; gives the one sentence it says."""
    from regard.cli import main

    def run(code: int, *words: str | Path) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("regard: ")
        return line.removeprefix("regard: ")

    return run


class DataTests:
    """Which data sets ran. Data that is there while every test of it was skipped is a failure, not a success."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        names = [str(value) for key, value in report.user_properties if key == "data"]
        if report.skipped:
            self.skipped.update(names)
        elif report.when == "call":
            self.ran.update(names)

    @property
    def forgotten(self) -> list[str]:
        """Data sets that are there although no data test ran at all."""
        return [] if self.ran else [name for name in sorted(self.skipped) if (DATA / name).is_dir()]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.forgotten and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for verb, names in (("ran", self.ran), ("skipped", self.skipped)):
            if names:
                told = ", ".join(f"{name} ({count})" for name, count in sorted(names.items()))
                terminalreporter.write_line(f"data sets {verb}: {told}")
        if self.forgotten:
            sets = ", ".join(self.forgotten)
            terminalreporter.write_line(f"FAILED: every data test was skipped although {sets} is in {DATA}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # the tensors of a test are tiny, and the cores are for its neighbours
    if not hasattr(config, "workerinput"):  # the reports of xdist's workers meet in the controller
        config.pluginmanager.register(DataTests(), "data-tests")


def pytest_report_header() -> str:
    found = sorted(path.name for path in DATA.iterdir() if path.is_dir()) if DATA.is_dir() else []
    return f"data sets in {DATA}: {', '.join(found) or 'none'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        names = [name for marker in item.iter_markers("data") for name in marker.args]
        item.user_properties += [("data", name) for name in names]
        if "data_dir" in getattr(item, "fixturenames", ()) and not names:
            raise pytest.UsageError(f'{item.nodeid} uses data; mark it with @pytest.mark.data("name of the data set")')
    if "storm" not in config.option.markexpr and not os.environ.get("REGARD_STORM"):
        calm = [item for item in items if item.get_closest_marker("storm") is None]
        config.hook.pytest_deselected(items=[item for item in items if item not in calm])
        items[:] = calm
