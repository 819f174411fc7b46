"""The page on the server that `regard serve` runs: its policy, its key, its compression, its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
import tiny
from browsing import Tab, browsing

pytest.importorskip("fastapi", reason="no FastAPI: the page was NOT tried on its own server")

KEY = "a-key"
VIEWS = ("overview", "head", "alignment", "search", "arithmetic", "positions", "training", "compare")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    from regard.serve.address import bind
    from regard.serve.app import application
    from regard.serve.metrics import Metrics
    from regard.serve.models import Models
    from regard.serve.server import Serving

    metrics = Metrics()
    models = Models([tiny.trained()], metrics=metrics, device="cpu")
    with bind("127.0.0.1", 0, exactly=False) as listener:
        server = Serving(application(models, metrics, key=KEY), models, say=lambda text: None)
        thread = Thread(target=server.listen, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/?token={KEY}"
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


def test_a_model_is_asked_and_every_view_opens(browser: Any, address: str) -> None:
    one = Tab(browser)
    one.open(address, "overview")
    assert one.text(".said"), "it opens with a text that was held out, and its answer"
    one.page.evaluate("() => performance.clearMarks()")
    one.page.get_by_label("Text", exact=True).fill("twenty-three")
    one.page.get_by_role("button", name="Look", exact=True).click()
    one.drawn("overview")
    one.page.evaluate("document.activeElement.blur()")
    for number, view in enumerate(VIEWS, 1):
        one.press(str(number))
        one.drawn(view)
        assert one.page.locator(f"#panel-{view}").is_visible()
    one.press("2", "]")
    one.page.get_by_role("button", name="Silence this head").click()
    one.page.wait_for_selector("text=Answered now")
    one.close()
