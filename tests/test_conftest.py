"""The test run's own promises: data that is there is used, and long runs wait to be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text("utf-8")
MARKERS = "[pytest]\nmarkers =\n    data(name): needs a data set\n    storm: long\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with this conftest, and one data set called "letters"."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini(MARKERS)
    pytester.mkdir("sets").joinpath("letters").mkdir()
    monkeypatch.setenv("REGARD_DATA", str(pytester.path / "sets"))
    monkeypatch.delenv("REGARD_STORM", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def data_test(body: str, name: str = "letters") -> str:
    return f"import pytest\n@pytest.mark.data({name!r})\ndef test_{name}(data_dir):\n    {body}\n"


def test_data_sets_that_ran_are_named(project: pytest.Pytester) -> None:
    project.makepyfile(data_test("assert data_dir('letters').is_dir()"))
    result = project.runpytest_inprocess()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["data sets in *sets: letters", "data sets ran: letters (1)"])


def test_absent_data_is_skipped_with_a_message(project: pytest.Pytester) -> None:
    project.makepyfile(data_test("data_dir('numbers')", "numbers"))
    result = project.runpytest_inprocess("-rs")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        ["*no data set 'numbers' in *sets; set REGARD_DATA*", "data sets skipped: numbers (1)"]
    )


@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "1"]], ids=["alone", "xdist"])
def test_data_that_is_there_but_always_skipped_is_red(project: pytest.Pytester, workers: list[str]) -> None:
    project.makepyfile("def test_other(): pass\n" + data_test("pytest.skip('not today')"))
    result = project.runpytest_inprocess(*workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["FAILED: every data test was skipped although letters is in *sets"])


def test_one_data_test_that_ran_is_enough(project: pytest.Pytester) -> None:
    project.makepyfile(test_a=data_test("pytest.skip('not today')"), test_b=data_test("data_dir('letters')"))
    result = project.runpytest_inprocess()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["data sets ran: letters (1)", "data sets skipped: letters (1)"])


def test_a_test_of_data_must_say_so(project: pytest.Pytester) -> None:
    project.makepyfile("def test_unmarked(data_dir): data_dir('letters')")
    result = project.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*::test_unmarked uses data; mark it with @pytest.mark.data(*"])


def test_storms_wait_to_be_asked_for(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile("import pytest\n@pytest.mark.storm\ndef test_storm(): pass\ndef test_calm(): pass")
    project.runpytest_inprocess().assert_outcomes(passed=1, deselected=1)
    project.runpytest_inprocess("-m", "storm").assert_outcomes(passed=1, deselected=1)
    monkeypatch.setenv("REGARD_STORM", "1")
    project.runpytest_inprocess().assert_outcomes(passed=2)
