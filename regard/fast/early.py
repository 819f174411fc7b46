"""Kernels that begin before the one before them has ended.

Each of ours lets the next one begin at once, where the GPU can (from Hopper on): that one finds its place and reads its
matrix, which nobody writes to, while this one is at work, and waits only before it reads what this one leaves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

triton: Any = None
with suppress(ImportError):  # there is none for this platform
    if torch.backends.cuda.is_built() or "TRITON_INTERPRET" in os.environ:  # others need not wait for it
        import triton  # type: ignore[no-redef]
        import triton.language as tl

HOPPER = (9, 0)  # compute capability

if triton is None:
    INTERPRETED = False
else:
    INTERPRETED = triton.knobs.runtime.interpret  # on a CPU, slowly: to see that they are right

    @triton.jit
    def begin_next(EARLY: tl.constexpr):
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()

    @triton.jit
    def await_the_others(EARLY: tl.constexpr):
        """Nothing that such a kernel computes in a step may be read, and nothing at all written, before this. What
        other kernels have written may: they let nobody begin early. One graph is one step, so that the steps before
        are over."""
        if EARLY:
            tl.extra.cuda.gdc_wait()


def early(t: Tensor) -> dict[str, bool]:
    """How a kernel is called that may begin before the one before it has ended."""
    able = t.is_cuda and torch.cuda.get_device_capability(t.device) >= HOPPER
    return {"EARLY": True, "launch_pdl": True} if able else {"EARLY": False}
