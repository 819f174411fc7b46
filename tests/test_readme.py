"""The README keeps its word: its commands run, its Python runs, its recipes parse, its tables agree with the code.

Commands run for real, in a folder with a tiny run and a few lines of text. Four kinds are too long or not ours to run,
and are checked in another way: `make` targets exist, extras of `pip install` exist, `python -m` names a module that
exists, and a training of a shipped recipe or the demo is resolved to its last setting (`--print-config`) but not begun.
The training of the README's own recipe is begun and cut short after a few steps.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from interop.made import made

import regard
from regard import errors
from regard.cli import VERBS, main
from regard.config import make_recipe, merge
from regard.interop.hf import export_folder
from regard.laws import LAWS
from regard.models import schema
from regard.recipes import list_recipes

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = ["--train.steps", "3", "--train.evaluate-every", "0", "--model.layers", "1", "--decode.beam", "1"]

PAIRS = [
    (f"{who} {does} {where}", f"{wer} {tut} {wo}")
    for who, wer in (("A dog", "Ein Hund"), ("A child", "Ein Kind"), ("The woman", "Die Frau"))
    for does, tut in (("runs", "läuft"), ("sleeps", "schläft"), ("sits", "sitzt"))
    for where, wo in (("on the beach.", "am Strand."), ("in the house.", "im Haus."), ("here.", "hier."))
]


def blocks(*languages: str) -> list[str]:
    """The fenced blocks of the README in these languages."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def commands() -> list[str]:
    """Every command that the README prints, in a block or as inline code in a table."""
    in_blocks = [line for text in blocks("bash", "console", "sh") for line in text.splitlines() if line.strip()]
    in_tables = re.findall(r"^\|.*?`((?:regard|python -m) [^`]+)` \|", README, re.MULTILINE)
    return list(dict.fromkeys([*in_blocks, *(command for command in in_tables if "RUN" not in command)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A place to work in, with all that the README speaks of: runs/demo, mine.toml and its files."""
    place = tmp_path_factory.mktemp("readme")
    before = Path.cwd()
    os.chdir(place)
    try:
        for split in ("train", "valid", "held"):
            Path(f"{split}.en").write_text("".join(f"{source}\n" for source, _ in PAIRS), "utf-8")
            Path(f"{split}.de").write_text("".join(f"{target}\n" for _, target in PAIRS), "utf-8")
        Path("phrases.txt").write_text("twenty-three\nfour euros\n", "utf-8")
        Path("mine.toml").write_text(blocks("toml")[0], "utf-8")
        small = {"dim": 16, "hidden": 16}
        once = {"steps": 3, "evaluate_every": 0, "device": "cpu"}
        regard.train("demo", "runs/demo", data={"count": 200, "held": 8}, model=small, train=once)
        export_folder(
            made("bert", "masked", head="masked", segments=0, pooler="none", context=64), "distilbert-tiny"
        )  # fmt: skip
        yield place
    finally:
        os.chdir(before)


def run(command: str) -> None:
    """As a shell would, for `regard WORDS < FILE > FILE`."""
    words = shlex.split(command)
    assert words[0] == "regard", command
    with ExitStack() as stack:
        if ">" in words:
            at = words.index(">")
            stack.enter_context(redirect_stdout(stack.enter_context(open(words[at + 1], "w", encoding="utf-8"))))
            del words[at : at + 2]
        if "<" in words:
            at = words.index("<")
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(sys, "stdin", stack.enter_context(open(words[at + 1], encoding="utf-8")))
            del words[at : at + 2]
        assert main(words[1:]) == 0, command


@pytest.mark.parametrize("command", commands())
def test_commands(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    match shlex.split(command):
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        case ["pip", "install", *words]:
            assert (ROOT / words[words.index("-c") + 1]).exists()
            assert asked(words[-1]) <= set(project()["optional-dependencies"])
        case ["python", "-m", module]:
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
        case ["regard", "demo" | "serve" as verb, *words]:  # one takes minutes, the other has no end
            main([verb, "--help"])
            told = capsys.readouterr().out
            assert all(word in told for word in words if word.startswith("--"))
        case ["regard", "train", name, *words] if name in list_recipes() and "--print-config" not in words:
            run(f"{command} --print-config")
        case ["regard", "reproduce", *words] if "--show" not in words:
            run(f"{command} --show")
        case ["regard", "train", _, "--out", out]:
            shutil.rmtree(out, ignore_errors=True)
            run(f"{command} {shlex.join(SHORT)}")
        case ["regard", "import" | "export", _, out, *_] if Path(out).exists():
            shutil.rmtree(out)
            run(command)
        case ["regard", _, "runs/distilbert", *_] if not Path("runs/distilbert").exists():
            run("regard import distilbert-tiny runs/distilbert")
            run(command)
        case ["regard", _, "runs/mine", *_] if not Path("runs/mine").exists():
            run(f"regard train mine.toml --out runs/mine {shlex.join(SHORT)}")
            run(command)
        case _:
            run(command)


def test_files_that_commands_write(folder: Path) -> None:
    run("regard predict runs/demo < phrases.txt > answers.txt")
    assert Path("answers.txt").read_text("utf-8").strip()
    run('regard look runs/demo "twenty-three" --png look')
    run('regard look runs/demo "twenty-three" --html look.html')
    assert Path("look.png").exists()
    assert Path("look.svg").exists()
    assert "<script" in Path("look.html").read_text("utf-8")


def test_python(folder: Path) -> None:
    """The blocks are one program, read from top to bottom."""
    names: dict[str, Any] = {}
    shutil.rmtree("runs/trial", ignore_errors=True)
    for text in blocks("python"):
        exec(compile(text, "README.md", "exec"), names)
    assert names["weights"].shape == torch.Size([3, 2, 5, 7])


def test_recipes_parse() -> None:
    """The first block is whole; the others show what to write in its place."""
    whole, *parts = [tomllib.loads(text) for text in blocks("toml")]
    recipe = make_recipe(whole, schema)
    assert len(recipe.data.train) == 2
    for part in parts:
        assert make_recipe(merge(whole, part), schema).data.fields is not None


def test_tables_agree_with_the_code() -> None:
    assert [name.strip("`") for name, *_ in rows("The verbs")] == list(VERBS)
    assert dict(rows("The laws")) == {name: law.says for name, law in LAWS.items()}
    kinds = [errors.RegardError, errors.ConfigError, errors.DataError, errors.CheckpointError, errors.Diverged]
    assert [int(code) for code, _ in rows("Exit codes")] == [0, *(kind.code for kind in kinds), 130, 143]
    assert {name.strip("`") for name, *_ in rows("Install")} == set(project()["optional-dependencies"])


def test_the_tree_is_the_tree() -> None:
    """Each file that is named exists, and each file of the package is named."""
    (tree,) = [text for text in blocks("text") if "regard/core/mask.py" in text]
    named = [line.split()[0] for line in tree.splitlines()]
    assert [name for name in named if not (ROOT / name).exists()] == []
    real = {str(path.relative_to(ROOT)) for path in (ROOT / "regard").rglob("*.py") if not path.name.startswith("__")}
    assert real - set(named) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert set(re.findall(r": (\w+\.md)$", menu, re.MULTILINE)) == {path.name for path in (ROOT / "docs").glob("*.md")}


def asked(requirement: str) -> set[str]:
    found = re.search(r"\[(.*)\]", requirement)
    return set(found[1].split(",")) if found else set()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found
