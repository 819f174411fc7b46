"""Models of the Hugging Face hub by name, "org/name", where no folder of that name is here.

Of a model's files those are fetched that are read, by a list; no code and no pickle is among them.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError, RegardError
from regard.interop import files, recipe, tokens

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WANTED = [
    files.CONFIG, files.INDEX, "*.safetensors", recipe.GENERATION, recipe.SENTENCES, tokens.TOKENIZER, tokens.SETTINGS,
    tokens.SPECIAL, "added_tokens.json", "vocab.txt", "vocab.json", "target_vocab.json", "merges.txt", "source.spm",
    "target.spm", "spiece.model",
]  # fmt: skip


def is_name(folder: Path) -> bool:
    """Whether it can only be a name at the hub. Beside runs and folders that are here, it is a folder misspelt."""
    home = folder.parent
    return bool(NAME.fullmatch(str(folder))) and home.name != "runs" and not folder.exists() and not home.exists()


def fetch(name: str) -> Path:
    """The folder that the hub's model was fetched to, by its own cache."""
    try:
        hub: Any = import_module("huggingface_hub")
    except ImportError:
        what = f"{name}: no such folder, and to fetch it from the Hugging Face hub needs huggingface_hub"
        raise RegardError(f"{what}; write pip install 'regard[hub]'") from None
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=WANTED, ignore_patterns=["*/*"]))
    except hub.errors.RepositoryNotFoundError:
        what = f"{name}: no such folder, and no such model at the Hugging Face hub, or none for you"
        raise CheckpointError(f"{what}; name a folder or another model, or log in with: hf auth login") from None
    except (OSError, ValueError) as error:
        why = str(error).strip().partition("\n")[0].rstrip(".")
        what = f"{name}: no such folder, and the Hugging Face hub cannot be reached ({why})"
        raise RegardError(f"{what}; name a folder, or try again later") from None
    if not any(folder.glob("*.safetensors")):
        what = f"{name} has no safetensors at the Hugging Face hub, and Regard reads nothing else"
        way = f'transformers.AutoModel.from_pretrained("{name}").save_pretrained("{name.partition("/")[2]}")'
        raise CheckpointError(f"{what}; where you trust its pickles, convert them: {way}")
    return folder


def name_of(folder: Path) -> str:
    """What to call a folder: one in the hub's cache by the name of its model."""
    cache = folder.resolve().parent
    known = cache.name == "snapshots" and cache.parent.name.startswith("models--")
    return cache.parent.name.removeprefix("models--").replace("--", "/") if known else folder.resolve().name
