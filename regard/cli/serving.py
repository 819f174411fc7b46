"""The verb that serves runs over HTTP, with the page that looks into them."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import Field

from regard.cli.flags import arguments
from regard.cli.shared import err, out
from regard.config import Config
from regard.errors import ConfigError
from regard.serve.address import bind, is_every, is_loopback

LARGE = 64 << 20  # bytes of weights
KEY = "REGARD_API_KEY"


class ServeOptions(Config):
    host: str = "127.0.0.1"
    """Where to listen. Any other than this machine's own needs a key."""
    port: int = Field(8000, ge=0, le=65_535)
    """The next that is free where it is taken; 0: any."""
    api_key: str = ""
    """What a client has to know; also read from REGARD_API_KEY, unseen by other users. Drawn when left out."""
    names: tuple[str, ...] = ()
    """Names by which the server may be called, besides its host's."""
    rows: int = Field(64, ge=1, le=4096)
    """Hypotheses that are decoded together, over all requests."""
    waiting: int = Field(64, ge=1, le=65_536)
    """Requests that may wait; the next is refused."""
    seconds: float = Field(60.0, gt=0, le=86_400)
    """For an answer, the waiting included."""
    threads: int = Field(0, ge=0, le=1024)
    """Of torch. 0: one where all models are small, which is faster then, else as many as there are cores."""
    device: str = "auto"
    """cpu, cuda, or whichever is there."""
    arithmetic: Literal["fp32", "bf16", "int8"] = "fp32"
    """bf16: 16 bits, for a GPU. int8: products in whole numbers, for a CPU. Both are quicker and not quite the same."""


def serve(argv: list[str]) -> int:
    words, values = arguments(argv, ServeOptions)
    options = ServeOptions(**values)
    if not words:
        raise ConfigError("which run? Name its folder, for example runs/demo")
    given = options.api_key or os.environ.get(KEY, "")
    if not is_loopback(options.host) and not given:
        raise ConfigError(
            f"--host {options.host} can be reached from other machines; give a key with --api-key, or in {KEY}"
        )
    if not given.isascii():
        raise ConfigError("--api-key: a header holds plain letters and digits alone; choose such a key")
    with bind(options.host, options.port, exactly="port" in values) as listener:
        return _listen([Path(word) for word in words], options, given or secrets.token_urlsafe(24), listener)


def _listen(folders: list[Path], options: ServeOptions, key: str, listener: socket.socket) -> int:
    try:
        from regard.serve.app import application
        from regard.serve.server import Serving
    except ModuleNotFoundError as error:
        raise ConfigError(f"serving needs {error.name}; install it with: pip install 'regard[serve]'") from None
    from regard.serve.guard import LOOPBACK
    from regard.serve.metrics import Metrics
    from regard.serve.models import Models

    _settle(folders, options.threads)
    metrics = Metrics()
    models = Models(
        folders, rows=options.rows, waiting=options.waiting, seconds=options.seconds, device=options.device,
        arithmetic=options.arithmetic, metrics=metrics,
    )  # fmt: skip
    names = () if is_every(options.host) and not options.names else (*LOOPBACK, options.host, *options.names)
    app = application(models, metrics, key=key, names=names)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    say = partial(err.print, markup=False, soft_wrap=True)
    if options.api_key or os.environ.get(KEY):  # whoever gave it knows it; it is not shown
        say("your key goes behind the address of the page, as ?token=…, or into the header Authorization: Bearer …")
    else:
        address += f"?token={key}"
    out.print(address, soft_wrap=True)
    return Serving(app, models, say=say).listen([listener])


def _settle(folders: list[Path], threads: int) -> None:
    """A step of a small model is over before a second thread has begun."""
    import torch

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    for noisy in ("uvicorn", "asyncio"):  # whoever talks nonsense, or hangs up, would fill the log
        logging.getLogger(noisy).setLevel(logging.ERROR)
    large = any(file.stat().st_size > LARGE for folder in folders for file in folder.glob("*.safetensors"))
    if threads or not large:
        torch.set_num_threads(threads or 1)
