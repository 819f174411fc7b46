"""Nothing in the package runs code that came with data: no pickles, no eval, no shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "__import__"}
ATTRIBUTES = {
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
    "numpy.load",
    "np.load",
}
SETTINGS = {"shell": True, "allow_pickle": True, "weights_only": False}


def banned(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module for _ in names if module.split(".")[0] in MODULES)
                yield from (name for alias in names if (name := f"{module}.{alias.name}") in ATTRIBUTES)
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield f"{name}("
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in ATTRIBUTES:
                yield f"{module}.{name}"
            case ast.keyword(arg=str(name), value=ast.Constant(value=value)) if (
                name in SETTINGS and SETTINGS[name] is value
            ):
                yield f"{name}={value}"
        words = (getattr(node, part, None) for part in ("id", "arg", "attr", "value"))
        yield from ("trust_remote_code" for word in words if word == "trust_remote_code")


@pytest.mark.parametrize("path", sorted((ROOT / "regard").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_banned_is_used(path: Path) -> None:
    assert list(banned(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle.x as y",
        "from pickle import loads",
        "import torch; torch.load('x')",
        "from torch import load",
        "f = torch.load",
        "eval('1')",
        "exec(text)",
        "subprocess.run(command, shell=True)",
        "yaml.load(text)",
        "np.load(path)",
        "load(path, allow_pickle=True)",
        "load(path, trust_remote_code=True)",
        "def f(trust_remote_code): pass",
        "options['trust_remote_code']",
    ],
)
def test_what_is_banned_is_found(source: str) -> None:
    assert list(banned(source))


@pytest.mark.parametrize(
    "source", ["model.eval()", "json.load(file)", "run(shell=False)", "# torch.load(x)", "safetensors.torch.load(x)"]
)
def test_what_is_not_banned_is_not_found(source: str) -> None:
    assert not list(banned(source))
