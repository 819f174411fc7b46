"""What a model looked at as one HTML file: no network, no server, nothing but the file.

Tokens are data and stay data: they travel as JSON in which no markup can begin, the page writes them as text only,
and its policy lets no other script or style run than the two it came with.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from regard.view.capture import Trace
from regard.view.scale import VIRIDIS


def page(trace: Trace) -> str:
    parts = files("regard.view") / "page"
    style, script, template = ((parts / f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    return (
        template.replace("{{style-hash}}", _hash(style))
        .replace("{{script-hash}}", _hash(script))
        .replace("{{style}}", style)
        .replace("{{script}}", script)
        .replace("{{data}}", _data(trace))  # last: what a token says is never looked through for places to fill
    )


def _data(trace: Trace) -> str:
    data = {"trace": trace.to_json(), "main": trace.pick(), "scale": VIRIDIS}
    text = (
        json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="replace").decode()
    )  # no half letters
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _hash(text: str) -> str:
    """As a content security policy wants it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
