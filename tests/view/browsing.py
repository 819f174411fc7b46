"""A browser for tests: it finds this machine alone; to ask elsewhere is an error, as is whatever its console says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT = 15_000  # milliseconds; a busy machine is slow


@contextmanager
def browsing() -> Iterator[Any]:
    if PATH is None:
        pytest.skip("no Chromium is installed: the page was NOT tried in a browser (Debian: apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: the page was NOT tried in a browser")
    with playwright.sync_playwright() as driver:
        alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        flags = [alone, "--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = driver.chromium.launch(executable_path=PATH, args=flags)
        yield browser
        browser.close()


class Tab:
    """One page, and all that went wrong in it."""

    def __init__(self, browser: Any, *, width: int = 1280, height: int = 860, theme: str = "light") -> None:
        self.trouble: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.page.on("console", lambda said: self.trouble.append(f"console {said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on("request", lambda request: self._near(request.url))

    def _near(self, url: str) -> None:
        address = urlsplit(url)
        if address.scheme not in ("file", "data", "blob", "about") and address.hostname != "127.0.0.1":
            self.trouble.append(f"asked {url}")

    def open(self, address: str, view: str = "") -> None:
        """Goes there and waits until the view has been drawn. Another fragment of the same page is no new page."""
        if self.page.url.split("#")[0] == address.split("#")[0]:
            self.page.evaluate("() => performance.clearMarks()")
            self.page.evaluate("hash => { location.hash = hash; }", address.partition("#")[2])
        else:
            self.page.goto(address)
        if view:
            self.drawn(view)

    def drawn(self, view: str) -> None:
        self.page.wait_for_function("name => performance.getEntriesByName(name).length", arg=f"regard:{view}")
        self.settle()

    def settle(self) -> None:
        """Until nothing is on its way, and what came has been drawn."""
        frames = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.page.evaluate(frames)
        self.page.wait_for_selector("#stage:not([aria-busy=true])")
        self.page.evaluate(frames)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def saved(self, kind: str) -> Any:
        """The file that a button gives. It is pressed by a key: a click may miss what moves while a view grows."""
        try:
            with self.page.expect_download() as coming:
                self.page.get_by_role("button", name=kind, exact=True).press("Enter")
        except Exception as error:
            raise AssertionError(f"nothing was saved as {kind}; the page said {self.trouble}") from error
        return coming.value

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def close(self) -> None:
        self.context.close()
        assert self.trouble == []
