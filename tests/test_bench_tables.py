"""Tables of benchmarks whose parts are run apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from bench import harness
from bench.harness import Comparison, common_told, in_common, report

NAMES = ("small", "large")


def raced(name: str, machine: str = "") -> Comparison:
    return Comparison(
        name, "words/s", "regard", {"regard": 8.0, "peer": 8.0}, {"regard": [1.0], "peer": [2.0]}, machine
    )


def test_works_that_were_not_raced_keep_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    report("race", "A race", "How.", [raced("small", "an old machine"), raced("large"), raced("gone")], known=NAMES)
    report("race", "A race", "How.", [raced("large")], known=NAMES)
    (table,) = tmp_path.glob("race-*.md")
    text = table.read_text("utf-8")
    names = [line.split("|")[1].strip() for line in text.splitlines() if "regard |" in line]
    assert names == ["small [2]", "large [1]"]
    assert "| large [1] | peer | 4 words/s | **2.00×** (2.00–2.00) |" in text
    assert text.endswith(f"\n\n[1] {harness.machine()}\n\n[2] an old machine\n")
    report("race", "A race", "How.", [raced("large")])
    assert [row["work"] for row in json.loads(table.with_suffix(".json").read_text("utf-8"))["rows"]] == ["large"]


def test_how_an_engine_was_raced_stays_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    small = raced("small")
    small.chosen = {"peer": "2 threads"}
    report("race", "A race", "How.", [small], known=NAMES)
    report("race", "A race", "How.", [raced("large")], known=NAMES)
    (table,) = tmp_path.glob("race-*.md")
    assert "| small | peer (2 threads) | 4 words/s |" in table.read_text("utf-8")
    assert "| large | peer | 4 words/s |" in table.read_text("utf-8")


def test_memory_stays_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    small = raced("small")
    small.peaks = {"regard": 3 * 2**29}
    report("race", "A race", "How.", [small], known=NAMES)
    report("race", "A race", "How.", [raced("large")], known=NAMES)
    (table,) = tmp_path.glob("race-*.md")
    lines = table.read_text("utf-8").splitlines()
    assert "| small | regard | 8 words/s |  | 1.5 GiB |" in lines
    assert "| small | peer | 4 words/s | **2.00×** (2.00–2.00) | |" in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {6}


def test_the_machine_is_told_with_its_instructions_and_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(harness, "LOAD", 0.4)
    assert re.search(r"cores of .+ \(\w+( with VNNI( and AMX|, Zen 4|, Intel)?)?\); Python ", harness.machine())
    assert "busy" not in harness.machine()
    monkeypatch.setattr(harness, "LOAD", 1.27)
    assert harness.machine().endswith("; busy: load average 1.3 before")


def test_where_git_is_not_there_no_commit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    assert "commit" not in harness.machine()
    monkeypatch.setenv("PATH", "")
    assert "commit" not in harness.machine()


def test_tokens_count_until_the_first_that_differs() -> None:
    assert in_common([[1, 2, 3, 4]], [[1, 2, 3, 4]]) == 1.0
    assert in_common([[1, 2, 3, 4], [5, 6]], [[1, 9, 3, 4], [5, 6]]) == (0.25 + 1.0) / 2
    small = raced("small")
    small.same = 0.625
    assert common_told([small, raced("large")]).endswith("differs: small: 62%")


def test_a_slow_machine_has_fewer_rounds_but_never_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def slow() -> float:
        nonlocal now
        now += 3.0
        return 1.0

    monkeypatch.setattr(harness, "clock", lambda: now)
    found = harness.race("work", "words/s", {"regard": slow, "peer": slow}, rounds=20, warm=1)
    assert {len(seconds) for seconds in found.seconds.values()} == {harness.LEAST}
    found = harness.race("work", "words/s", {"regard": slow, "peer": slow}, rounds=20, warm=1, patience=50.0)
    assert {len(seconds) for seconds in found.seconds.values()} == {9}


KINDS = {
    "AVX512 with VNNI and AMX": "cpu-amx",
    "AVX512 with VNNI, Zen 4": "cpu-zen4",
    "AVX512 with VNNI, Intel": "cpu-vnni",
    "AVX512 with VNNI": "cpu",
    "AVX512": "cpu-avx512",
    "AVX2": "cpu-avx2",
    "NO AVX": "cpu-no-avx",
}
FLAGS = {"VNNI": "fma avx512_vnni", "VNNI and AMX": "fma avx512_vnni amx_int8"}


@pytest.mark.parametrize(("told", "kind"), KINDS.items())
def test_other_processors_have_tables_of_their_own(told: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    capability, _, more = told.partition(" with ")
    monkeypatch.setattr(harness.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(harness.torch.backends.cpu, "get_cpu_capability", lambda: capability)
    more, _, maker = more.partition(", ")
    said = {"flags": FLAGS.get(more, "fma"), "vendor_id": "GenuineIntel" if maker == "Intel" else "AuthenticAMD"}
    said["cpu family"] = "25" if maker == "Zen 4" else "26"
    monkeypatch.setattr(harness, "_of_processor", said.__getitem__)
    assert harness.kind() == kind


def test_a_table_is_of_the_kind_of_machine_in_its_name() -> None:
    of_one = re.compile(r"\((?:held to )?(AVX\S*|AVX512 with VNNI(?: and AMX|, Zen 4|, Intel)?)\)")
    for table in Path(harness.__file__).parent.glob("results/*-cpu*.md"):
        told = [line for line in table.read_text("utf-8").splitlines() if "cores of" in line]
        kinds = {KINDS[found[1]] for line in told if (found := of_one.search(line))}
        assert kinds <= {f"cpu{table.stem.rpartition('-cpu')[2]}"}, table.name
