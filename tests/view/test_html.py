from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from regard.view.capture import Trace
from regard.view.html import page

Make = Callable[..., Trace]
EVIL = "</script><img src=x onerror=document.title='owned'>"
HOSTILE = [EVIL, "<!--", "{{data}}", "{{script}}", "]]>", "\u2028", "&lt;b&gt;", "\ud800", "__proto__", "<eos>"]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


def test_the_page_carries_the_whole_trace(make: Make) -> None:
    trace = make()
    data, _ = Parts(page(trace)).inside["script"]
    carried = json.loads(data)
    assert carried["trace"] == trace.to_json()
    assert carried["main"] == "decoder.1.cross"


def test_no_token_becomes_markup(make: Make) -> None:
    plain, hostile = make(), make(HOSTILE, HOSTILE, title=EVIL)
    written = page(hostile)
    assert "<img" not in written
    assert "onerror" not in re.sub(r'<script type="application/json".*?</script>', "", written, flags=re.DOTALL)
    assert [tag for tag, _ in Parts(written).tags] == [tag for tag, _ in Parts(page(plain)).tags]
    carried = json.loads(Parts(written).inside["script"][0])["trace"]
    assert carried["tokens"]["source"] == [token.replace("\ud800", "?") for token in HOSTILE]
    written.encode()  # half a surrogate pair could not be saved


def test_the_page_needs_nothing_from_outside_and_runs_nothing_else(make: Make) -> None:
    parts = Parts(page(make()))
    for tag, attributes in parts.tags:
        assert not {"src", "href", "style", "action", "srcset"} & attributes.keys(), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    policy = next(a["content"] for t, a in parts.tags if t == "meta" and a.get("http-equiv")) or ""
    assert policy.startswith("default-src 'none';")
    for kind, text in (("style", parts.inside["style"][0]), ("script", parts.inside["script"][1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
        assert not re.search(
            r"https?:|//[a-z]|@import|url\(|innerHTML|insertAdjacentHTML|eval\(", text.replace("// ", "")
        )
    assert "unsafe" not in policy


def test_the_page_stays_small(make: Make) -> None:
    parts = Parts(page(make()))
    assert parts.inside["script"][1].count("\n") < 300


Browse = Callable[[str], str]


@pytest.fixture(scope="module")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Browse:
    """The page as a browser has it once its scripts have run, without a word of complaint."""
    if BROWSER is None:
        pytest.skip("no Chromium found")
    folder = tmp_path_factory.mktemp("browser")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=2000 --dump-dom"
    command = [BROWSER, *flags.split(), *more.split(), f"--user-data-dir={folder / 'profile'}"]

    def dump(address: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, address], capture_output=True, text=True, timeout=60)

    def browse(written: str) -> str:
        (folder / "page.html").write_text(written, "utf-8")
        done = dump((folder / "page.html").as_uri())
        assert done.returncode == 0
        assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
        return done.stdout

    if dump("about:blank").returncode:
        pytest.skip("Chromium does not start here")
    return browse


def test_a_browser_shows_hostile_tokens_as_text(make: Make, browse: Browse) -> None:
    trace = make(HOSTILE, HOSTILE, title=EVIL)
    shown = browse(page(trace))
    assert "<img" not in shown
    assert "<title>&lt;/script&gt;&lt;img" in shown
    weight = json.loads(json.dumps(trace.to_json()))["maps"]["decoder.1.cross"]["weights"]
    assert f"{sum(head[0][0] for head in weight) / 3:.4f}</output>" in shown


def test_a_browser_can_be_used_by_keys(make: Make, browse: Browse) -> None:
    """Down, right, right, next head: the cell that is told of is (1, 2) of head 0."""
    trace = make()
    press = """
      for (const key of ["ArrowUp", "ArrowDown", "ArrowRight", "ArrowRight", "]"])
        document.getElementById("map").dispatchEvent(new KeyboardEvent("keydown", { key }));
    """
    written = re.sub(r"<meta http-equiv[^>]*>", "", page(trace)).replace("</body>", f"<script>{press}</script></body>")
    shown = browse(written)
    cell = re.sub(r"<[^>]*>", "", re.findall(r'<p id="cell".*?</p>', shown, flags=re.DOTALL)[0])
    weight = trace.maps["decoder.1.cross"][0, 1, 2]
    assert cell == f"While it wrote alte, the model looked at house with weight {weight:.4f}"
