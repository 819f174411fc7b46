"""The command `regard`, which is also `python -m regard`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Hears Ctrl-C from the first moment, while modules are still being imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us wants it ignored
        signal.signal(signal.SIGINT, interrupt)
    from regard import cli

    return cli.main()


def interrupt(number: int, frame: FrameType | None) -> None:
    """What is raised in the middle of an import is swallowed by some modules, and breaks others. Until torch is there
    nothing has been begun that would have to be tidied up, so it ends us at once."""
    if getattr(sys.modules.get("torch"), "nn", None) is not None:
        raise KeyboardInterrupt
    os.write(2, b"regard: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
