"""The command `regard`, which is also `python -m regard`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

IMPORT = "<frozen importlib._bootstrap>"  # the file of the frames in which Python imports
SOON = 0.02  # seconds until a Ctrl-C that met an import comes again


def main() -> int:
    """Hears Ctrl-C from the first moment, while modules are still being imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants it ignored
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    from regard import cli

    return cli.main()


def interrupt(number: int, frame: FrameType | None) -> None:
    """What is raised in the middle of an import is swallowed by some modules, and breaks others. On the way to torch
    nothing has been begun, and it ends us at once; later, when there may be work to tidy up, it waits for the import.
    A second one does not wait.
    """
    frames = list(inside(frame))
    if not any(one.f_code.co_filename == IMPORT for one in frames):
        raise KeyboardInterrupt
    bodies = [one.f_globals["__name__"] for one in frames if one.f_code.co_name == "<module>"]
    if "torch" in bodies or "torch" not in sys.modules or signal.getitimer(signal.ITIMER_REAL)[0]:
        os.write(2, b"regard: interrupted\n")
        os._exit(130)
    signal.setitimer(signal.ITIMER_REAL, SOON)


def inside(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames between here and `main`."""
    while frame is not None and frame.f_code is not main.__code__:
        yield frame
        frame = frame.f_back


if __name__ == "__main__":
    sys.exit(main())
