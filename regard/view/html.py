"""The explorer as one HTML file: no network, no server, nothing but the file.

A browser loads no modules from disk, so they are laid end to end in one script. Tokens are data and stay data: they
travel as JSON in which no markup can begin, the page writes them as text only, and its policy lets no other script or
style run than those it came with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from posixpath import dirname, join, normpath
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.view.capture import Compared, Trace
from regard.view.contract import digest, header, page_files, thumbs

ROOM = 2**22  # weights that are saved: 16 MiB, and a third more as text
D3 = "vendor/d3.min.js"
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"(\.[^"]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)


def page(trace: Trace) -> str:
    """The page with one trace in it."""
    style, script, d3 = page_files()["page.css"].decode(), bundle(), page_files()[D3].decode()
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(d3)}' '{_hash(script)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    before, _, rest = page_files()["index.html"].decode().partition('<link rel="stylesheet"')
    _, _, body = rest.partition("</head>")
    inside, _, after = body.rpartition("</body>")
    return "".join(
        [
            before.replace("<title>", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>', 1),
            f"<style>{style}</style>\n</head>",
            inside,
            f'<script type="application/json" id="data">{_json({"traces": [_saved(trace)]})}</script>\n',
            f"<script>{d3}</script>\n<script>{script}</script>\n</body>",
            after,
        ]
    )


@cache
def bundle() -> str:
    """All modules of the page in one script, each after those that it imports."""
    done: dict[str, str] = {}
    _bundle("app.js", done)
    return '"use strict";\n' + "\n".join(done.values())


def _bundle(name: str, done: dict[str, str]) -> None:
    source = page_files()[name].decode()
    beside = [normpath(join(dirname(name), found[2])) for found in IMPORT.finditer(source)]
    for other in beside:
        if other not in done and other != D3:
            _bundle(other, done)
    names = EXPORT.findall(source)
    own = EXPORT.sub("", IMPORT.sub(lambda found: _taken(found[1], normpath(join(dirname(name), found[2]))), source))
    done[name] = f"const {_variable(name)} = (() => {{\n{own}return {{ {', '.join(names)} }};\n}})();"


def _taken(names: str | None, path: str) -> str:
    return f"const {{{names.replace(' as ', ': ')}}} = {_variable(path)};" if names else ""


def _variable(path: str) -> str:
    return "m_" + re.sub(r"\W", "_", path.removesuffix(".js"))


def _saved(trace: Trace) -> dict[str, Any]:
    kept = _kept(trace)
    return {
        "id": digest(trace),
        "header": header(trace),
        "thumbs": _text(np.frombuffer(thumbs(trace), np.uint8)),
        "maps": {name: _text(trace.maps[name].astype("<f4")) for name in kept},
        "parts": {name: _part(part) for name, part in trace.parts.items() if name in kept},
        "search": trace.tree,
        "positions": trace.positions,
    }


def _kept(trace: Trace) -> list[str]:
    """As many attentions as there is room for, the main one first, then from the last."""
    found: list[str] = []
    room = ROOM
    for name in dict.fromkeys([trace.pick(), *reversed(trace.maps)]):
        room -= trace.maps[name].size
        if room >= 0 or not found:
            found.append(name)
    return found


def _part(part: Compared) -> dict[str, Any]:
    return {
        "shape": [part.q.shape[1], part.q.shape[2], part.v.shape[2]],
        "scale": part.scale,
        "masks": 0 if part.seen is None else len(part.seen),
        "seen": None if part.seen is None else _text(part.seen.astype(np.uint8)),
        "scores": None if part.scores is None else _text(part.scores.astype("<f4")),
        **{name: _text(getattr(part, name).astype("<f4")) for name in ("q", "k", "v")},
    }


def _text(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _json(data: Any) -> str:
    text = (
        json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="replace").decode()
    )  # no half letters
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _hash(text: str) -> str:
    """As a content security policy wants it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
