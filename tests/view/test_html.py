from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np

from regard.view import html
from regard.view.capture import Compared, Trace
from regard.view.contract import header
from regard.view.html import bundle, page
from regard.view.notebook import Shown, show

Make = Callable[..., Trace]
EVIL = "</script><img src=x onerror=document.title='owned'>"
HOSTILE = [EVIL, "<!--", "{{data}}", "<title>", "]]>", "\u2028", "&lt;b&gt;", "\ud800", "__proto__", "</head>", "<eos>"]


class Parts(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open = ""
        self.inside: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag
        if tag in self.inside:
            self.inside[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open in self.inside:
            self.inside[self.open][-1] += data


def carried(written: str) -> Any:
    return json.loads(Parts(written).inside["script"][0])["traces"][0]


def test_the_page_carries_the_whole_trace(make: Make) -> None:
    trace = make()
    one = carried(page(trace))
    assert one["header"] == json.loads(json.dumps(header(trace)))
    for name, weights in trace.maps.items():
        assert np.array_equal(np.frombuffer(base64.b64decode(one["maps"][name]), "<f4"), weights.ravel())


def test_what_was_compared_is_carried_too(make: Make) -> None:
    draw = np.random.default_rng(0)
    q, k = (draw.normal(size=(3, n, 6)).astype(np.float32) for n in (5, 4))
    part = Compared(q, k, k[..., :2], 0.5, None, np.tri(5, 4, dtype=bool)[None])
    trace = make(names=["decoder.0.cross"])
    one = carried(page(Trace(trace.source, trace.target, trace.maps, parts={"decoder.0.cross": part})))
    saved = one["parts"]["decoder.0.cross"]
    assert saved["shape"] == [5, 6, 2]
    assert np.array_equal(np.frombuffer(base64.b64decode(saved["q"]), "<f4"), q.ravel())
    assert (saved["scale"], saved["masks"], saved["scores"]) == (0.5, 1, None)


def test_what_is_too_large_is_left_out_and_the_main_attention_never(make: Make, monkeypatch: Any) -> None:
    trace = make()
    monkeypatch.setattr(html, "ROOM", trace.maps["decoder.1.cross"].size + trace.maps["decoder.1.attention"].size)
    assert set(carried(page(trace))["maps"]) == {"decoder.1.cross", "decoder.1.attention"}
    monkeypatch.setattr(html, "ROOM", 0)
    assert set(carried(page(trace))["maps"]) == {"decoder.1.cross"}


def test_no_token_becomes_markup(make: Make) -> None:
    plain, hostile = make(), make(HOSTILE, HOSTILE, title=EVIL)
    written = page(hostile)
    assert "<img" not in written
    assert "owned" not in re.sub(r'<script type="application/json".*?</script>', "", written, flags=re.DOTALL)
    assert [tag for tag, _ in Parts(written).tags] == [tag for tag, _ in Parts(page(plain)).tags]
    tokens = carried(written)["header"]["tokens"]["source"]
    assert tokens == [token.replace("\ud800", "?") for token in HOSTILE]
    written.encode()  # half a surrogate pair could not be saved


def test_the_page_needs_nothing_from_outside_and_runs_nothing_else(make: Make) -> None:
    parts = Parts(page(make()))
    for tag, attributes in parts.tags:
        assert not {"src", "style", "action", "srcset"} & attributes.keys(), tag
        assert attributes.get("href", "data:,") == "data:,"
        assert not [name for name in attributes if name.startswith("on")], tag
    policy = next(a["content"] for t, a in parts.tags if t == "meta" and a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none';")
    _, *scripts = parts.inside["script"]
    for text in (*scripts, *parts.inside["style"]):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert len(scripts) == 2
    assert "unsafe" not in policy
    assert "connect-src" not in policy


def test_the_modules_become_one_script() -> None:
    source = bundle()
    assert not re.search(r"^(import|export)\b", source, re.MULTILINE)
    assert source.index("const m_dom =") < source.index("const m_views_head =") < source.index("const m_app =")
    if (node := shutil.which("node")) is not None:
        assert subprocess.run([node, "--check", "-"], input=source.encode(), timeout=30).returncode == 0


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(make: Make) -> None:
    trace = make(HOSTILE, HOSTILE)
    (frame,) = Parts(Shown(page(trace), 500)._repr_html_()).tags
    assert frame[0] == "iframe"
    assert frame[1]["srcdoc"] == page(trace)
    assert frame[1]["sandbox"] == "allow-scripts allow-downloads"
    assert show(trace, height=500).height == 500
