"""The explorer in a notebook: `regard.show(trace)`.

The page stands in a frame of its own that can reach nothing around it. With anywidget (the extra `notebook`) every
notebook shows it alike; without, as plain HTML.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from regard.view.capture import Trace
from regard.view.html import page

HEIGHT = 760
SANDBOX = "allow-scripts allow-downloads"
FRAME = """
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts allow-downloads");
    frame.title = "What the model looked at";
    frame.style.cssText = "width: 100%; border: 0;";
    frame.height = model.get("height");
    frame.srcdoc = model.get("page");
    el.append(frame);
  },
};
"""


@dataclass(frozen=True)
class Shown:
    """A page as notebooks ask for it."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="{SANDBOX}" title="What the model looked at" width="100%" height="{self.height}" '
            f'style="border: 0" srcdoc="{escape(self.page)}"></iframe>'
        )


def show(trace: Trace, *, height: int = HEIGHT) -> Any:
    """What the model looked at, as the last line of a cell."""
    try:
        import anywidget
        import traitlets
    except ModuleNotFoundError:
        return Shown(page(trace), height)

    class Widget(anywidget.AnyWidget):
        _esm = FRAME
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

    return Widget(page=page(trace), height=height)
