"""The page's budgets at 12 layers × 12 heads × 512 tokens, in headless Chromium against the real server.

python -m bench.page
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import numpy as np

from bench.harness import RESULTS, chromium, kind, machine, refuse_others
from regard.view.capture import Trace
from regard.view.contract import digest

LAYERS, HEADS, TOKENS = 12, 12, 512
KEY = "bench"
FLAGS = ["--disable-gpu", "--no-sandbox"]
BUDGETS = {
    "open to overview, ms": 1500.0,
    "sent until then, kB": 1000.0,
    "head switch, ms, median": 100.0,
    "hover, ms, median": 16.0,
    "hover, ms, 95th of 100": 50.0,
    "heap after all heads of a layer, MB": 200.0,
}

# what one frame costs: our listeners are called from requestAnimationFrame
FRAMES = """() => {
  window.frames_ = [];
  const real = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (work) => real((now) => {
    const began = performance.now();
    work(now);
    window.frames_.push(performance.now() - began);
  });
}"""
SWITCH = """async () => {
  performance.clearMarks("regard:head");
  const before = location.hash, began = performance.now();
  dispatchEvent(new KeyboardEvent("keydown", { key: "]" }));
  while (location.hash === before || !performance.getEntriesByName("regard:head").length)
    await new Promise((done) => setTimeout(done, 1));
  return performance.getEntriesByName("regard:head")[0].startTime - began;
}"""
HOVER = """async (times) => {
  const canvas = [...document.querySelectorAll("#panel-head canvas")].at(-1), box = canvas.getBoundingClientRect();
  const some = (share) => 0.3 + 0.6 * Math.abs(share);
  const at = (i) => ({
    clientX: box.left + box.width * some(Math.sin(i)),
    clientY: box.top + box.height * some(Math.cos(1.7 * i)),
    bubbles: true,
  });
  window.frames_.length = 0;
  for (let i = 0; i < times; i++) {
    canvas.dispatchEvent(new PointerEvent("pointermove", at(i)));
    await new Promise((done) => setTimeout(done, 40));
  }
  return window.frames_;
}"""


def large() -> Trace:
    """Each head looks so many tokens away, more or less sharply, and at a few tokens that all look at."""
    draw = np.random.default_rng(0)
    words = tuple(f"▁word{i}" for i in range(TOKENS))
    ahead = np.arange(TOKENS, dtype=np.float32)[:, None] - np.arange(TOKENS, dtype=np.float32)
    maps = {}
    for layer in range(LAYERS):
        scores = draw.normal(0, 0.6, (HEADS, TOKENS, TOKENS)).astype(np.float32)
        for head in range(HEADS):
            scores[head] -= np.abs(ahead - draw.integers(-40, 40)) / (2.0 ** draw.integers(0, 7))
            scores[head, :, draw.integers(0, TOKENS, 3)] += draw.normal(2, 2)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        maps[f"encoder.{layer}.attention"] = weights / weights.sum(-1, keepdims=True)
    return Trace(words, (), maps, title="large", caption="512 tokens")


@contextmanager
def served(trace: Trace) -> Iterator[str]:
    """The address of one trace on the server that `regard serve` runs."""
    from regard.serve.address import bind
    from regard.serve.app import application
    from regard.serve.metrics import Metrics
    from regard.serve.models import Models
    from regard.serve.server import Serving

    metrics = Metrics()
    models = Models([], metrics=metrics)
    app = application(models, metrics, key=KEY)
    name = digest(trace)
    app.app.state.traces.put(name, trace, "large")  # type: ignore[attr-defined]
    with bind("127.0.0.1", 0, exactly=False) as listener:
        server = Serving(app, models, say=lambda text: None)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/?token={KEY}#trace={name}"
        server.should_exit = True
        thread.join()


def measure(address: str) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.add_init_script(f"({FRAMES})()")
        sent: list[int] = []
        page.on(
            "requestfinished",
            lambda request: sent.append(
                sum(request.sizes()[kind] for kind in ("responseBodySize", "responseHeadersSize"))
            ),
        )
        opened = []
        for _ in range(5):
            page.goto("about:blank")
            sent.clear()
            page.goto(address)
            page.wait_for_function("() => performance.getEntriesByName('regard:overview').length")
            opened.append(page.evaluate("() => performance.getEntriesByName('regard:overview')[0].startTime"))
            page.wait_for_load_state("networkidle")
            if len(opened) == 1:
                whole = sum(sent)
        page.keyboard.press("2")
        page.wait_for_function("() => performance.getEntriesByName('regard:head').length")
        time.sleep(0.5)
        switched = [page.evaluate(SWITCH) for _ in range(HEADS - 1)]
        hovered = page.evaluate(HOVER, 60)
        used = page.context.new_cdp_session(page).send("Runtime.getHeapUsage")
        heap = used["usedSize"] + used["backingStorageSize"]
        browser.close()
    return {
        "open to overview, ms": statistics.median(opened),
        "sent until then, kB": whole / 1000,
        "head switch, ms, median": statistics.median(switched),
        "hover, ms, median": statistics.median(hovered),
        "hover, ms, 95th of 100": statistics.quantiles(hovered, n=20)[-1],
        "heap after all heads of a layer, MB": heap / 1e6,
    }


def main(asked: Sequence[str]) -> None:
    refuse_others(asked, [])
    if chromium() is None:
        print("no Chromium is installed, so the page is not measured; install it (Debian: apt install chromium)")
        return
    with served(large()) as address:
        found = measure(address)
    lines = [
        f"| {name} | {found[name]:,.1f} | ≤ {most:,.0f} | {'yes' if found[name] <= most else '**no**'} |"
        for name, most in BUDGETS.items()
    ]
    title = f"# The page at {LAYERS} layers × {HEADS} heads × {TOKENS} tokens\n\n"
    note = "Headless Chromium, software rendering, against `regard serve` on the same machine.\n\n"
    load = f"load average {os.getloadavg()[0]:.1f}"
    text = (
        title
        + note
        + "\n".join(["| | measured | budget | kept |", "|---|---|---|---|", *lines, "", f"{machine()}; {load}", ""])
    )
    print(text)
    place = RESULTS / f"page-{kind()}"
    place.with_suffix(".md").write_text(text, "utf-8")
    place.with_suffix(".json").write_text(json.dumps({"machine": machine(), "measured": found}, indent=1), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
