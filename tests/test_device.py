"""Where the work is done."""

from __future__ import annotations

import pytest
import torch

from regard.device import find_device, is_current


def test_a_gpu_that_is_named_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert [find_device(name).type for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert not current
    assert find_device("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]


def test_what_lies_on_another_gpu_is_not_on_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [is_current(torch.device(name)) for name in ("cpu", "cuda", "cuda:1", "cuda:0")] == [True, True, True, False]
