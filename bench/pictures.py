"""Pictures of the page for the README and the documentation, taken by a browser from a run that is served.

python -m bench.pictures runs/demo
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import chromium, refuse_others

HOME = Path(__file__).parents[1] / "docs" / "pictures"
TEXT = "three hundred and twenty-one thousand, four hundred and eighty-seven"
SHOTS = {  # name -> view, and what is selected in it
    "explorer": "view=alignment&name=decoder.1.cross&head=-1&query=3&key=6",
    "overview": "view=overview&name=decoder.1.cross&head=0",
    "head": "view=head&name=decoder.1.cross&head=0&query=3&key=5",
    "search": "view=search",
    "arithmetic": "view=arithmetic&name=decoder.1.cross&head=0&query=3&key=5",
}


@contextmanager
def serving(run: str) -> Iterator[str]:
    """The address that `regard serve` prints."""
    command = [sys.executable, "-m", "regard", "serve", run, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        said = ""
        try:
            while not (found := re.search(r"(http://\S+)[\s\S]*is ready", said)):
                line = server.stdout.readline()
                if not line:
                    raise SystemExit(f"the server did not start: {said}")
                said += line
            yield found[1]
        finally:
            server.terminate()


def take(page: Any, address: str, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(address)
    page.wait_for_function("() => performance.getEntriesByName('regard:overview').length")  # of what it opens with
    page.evaluate("() => performance.clearMarks()")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_text("What if …").click()
    page.get_by_label("Beam").fill("4")
    page.get_by_text("What if …").click()
    page.get_by_role("button", name="Look", exact=True).click()
    page.wait_for_function("() => performance.getEntriesByName('regard:overview').length")
    trace = re.search(r"trace=\w+", page.url)
    assert trace is not None
    for name, place in list(SHOTS.items())[: 1 if theme == "dark" else None]:
        page.evaluate("hash => { location.hash = hash; }", f"{trace[0]}&{place}")
        page.wait_for_timeout(600)
        page.screenshot(path=HOME / f"{name}{'-dark' if theme == 'dark' else ''}.png")


def main(asked: Sequence[str]) -> None:
    if "--help" in asked:
        refuse_others(asked, [])
    if len(asked) != 1 or not Path(asked[0]).is_dir():
        sys.exit(f"{' '.join(asked) or 'no word'} came; name the folder of one run, such as runs/demo")
    from playwright.sync_api import sync_playwright

    HOME.mkdir(parents=True, exist_ok=True)
    with serving(asked[0]) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 800}, device_scale_factor=1.5)
        for theme in ("light", "dark"):
            take(page, address, theme)
        browser.close()
    print(f"{', '.join(SHOTS)} are in {HOME}")


if __name__ == "__main__":
    main(sys.argv[1:])
