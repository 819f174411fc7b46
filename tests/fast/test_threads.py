"""Several threads may ask one model, also while its weights change: the native side works on memory that stays."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from regard.core.mask import Mask
from regard.fast import Reader, Writer, build
from regard.models.bert import Bert
from regard.models.bert import Config as BertConfig
from regard.models.gpt import GPT
from regard.models.gpt import Config as GPTConfig
from regard.models.transformer import Config, Transformer

AT_ONCE = 4
ASKED = """
import os
import torch
from regard.fast import Writer
from regard.models.transformer import Config, Transformer

torch.set_num_threads(2)
writer = Writer(Transformer(Config(vocab=300, dim=128, heads=4, layers=2, hidden=512)).eval(), whole=False)
source, prompt = torch.randint(4, 300, (32, 12)), torch.ones(32, 1, dtype=torch.long)

def ask():
    # of many sentences each thread has some, and few are written together
    asked = [(source[:rows], None, prompt[:rows]) for rows in (32, 3)]
    return [best[0].tokens for given in asked for best in writer(*given, eos=2, limit=8, shortest=8)]

right = ask()
"""
FORKED = """
child = os.fork()
if child == 0:
    os._exit(ask() != right)
assert os.waitpid(child, 0)[1] == 0
"""
BUSY = """
import os
from threading import Event, Thread
from regard.fast.alone import Alone

alone, begun, over = Alone(), Event(), Event()

def work():
    with alone:
        begun.set()
        over.wait()

thread = Thread(target=work)
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    with alone:
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
over.set()
thread.join()
"""
ALONE = """
torch.set_num_threads(1)
assert ask() == right
"""
Ask = Callable[[], Any]
pytestmark = pytest.mark.usefixtures("accelerator")


def encoder() -> tuple[Any, Ask]:
    stack = Bert(BertConfig(vocab=40, dim=128, heads=4, layers=2, hidden=512)).eval().encoder
    x, reader = torch.randn(8, 60, 128), Reader(stack, whole=False)

    def read() -> Any:
        with torch.inference_mode():
            return None if (found := reader(x, Mask())) is None else found.tolist()

    return reader, read


def decoder(model: Any, source: torch.Tensor | None) -> tuple[Any, Ask]:
    writer = Writer(model.eval(), whole=True)

    def write() -> Any:
        prompt = torch.ones(4, 1, dtype=torch.long)
        found = writer(source, None, prompt, eos=2, limit=30, keep=3, shortest=30)
        return None if found is None else [[h.tokens for h in best] for best in found]

    return writer, write


MADE: dict[str, Callable[[], tuple[Any, Ask]]] = {
    "encoder": encoder,
    "transformer": lambda: decoder(
        Transformer(Config(vocab=300, dim=128, heads=4, layers=2, hidden=512)), torch.randint(4, 300, (4, 12))
    ),
    "gpt": lambda: decoder(GPT(GPTConfig(vocab=300, dim=128, heads=4, layers=2, context=64)), None),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", MADE)
def test_a_model_that_nobody_has_asked_before_is_asked_by_all_at_once(kind: str, threads: int) -> None:
    """Also where each of them has a crew, and there are fewer cores than threads."""
    torch.set_num_threads(threads)
    try:
        ask_at_once(kind)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", MADE)
def test_one_of_them_reads_the_model_for_all(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    who, ask = MADE[kind]()
    read, times, ready = who.latest.read, [], Barrier(AT_ONCE)

    def slowly() -> Any:
        times.append(1)
        time.sleep(0.05)
        return read()

    def ask_with_the_others() -> Any:
        ready.wait()
        return ask()

    monkeypatch.setattr(who.latest, "read", slowly)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [pool.submit(ask_with_the_others) for _ in range(AT_ONCE)]
    assert all(answer.result() for answer in answers)
    assert len(times) == 1


def test_one_of_them_compiles_the_library_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    times, ready = [], Barrier(AT_ONCE)

    @cache
    def slowly() -> str:
        times.append(1)
        time.sleep(0.05)
        return "a library"

    def ask() -> Any:
        ready.wait()
        return build.library()

    monkeypatch.setattr(build, "_library", slowly)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [pool.submit(ask) for _ in range(AT_ONCE)]
    assert [answer.result() for answer in answers] == ["a library"] * AT_ONCE
    assert len(times) == 1


def ask_at_once(kind: str) -> None:
    torch.manual_seed(0)
    who, ask = MADE[kind]()
    right, ready = ask(), Barrier(AT_ONCE)

    def ask_with_the_others() -> Any:
        ready.wait()
        return ask()

    for _ in range(6):
        who.latest.like = None
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = [pool.submit(ask_with_the_others) for _ in range(AT_ONCE)]
        assert [answer.result() for answer in answers] == [right] * AT_ONCE


@pytest.mark.parametrize("kind", MADE)
def test_weights_change_while_others_ask(kind: str) -> None:
    torch.manual_seed(0)
    who, ask = MADE[kind]()
    right = ask()
    weight = next(part for part in who.latest.like.values if isinstance(part, torch.nn.Parameter))
    done: list[bool] = []

    def go_on() -> list[Any]:
        found = []
        while not done or not found:
            found.append(ask())
        return found

    with ThreadPoolExecutor(AT_ONCE) as pool:
        asking = [pool.submit(go_on) for _ in range(AT_ONCE)]
        with torch.no_grad():
            for _ in range(30):
                weight.mul_(1.0)  # to the same numbers, which nobody can know
                ask()
        done.append(True)
    assert all(answer == right for answers in asking for answer in answers.result())


@pytest.mark.parametrize("kind", MADE)
def test_what_was_read_stays_until_the_native_side_is_done(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    who, ask = MADE[kind]()
    alive: list[bool] = []

    def overtaken(*given: Any) -> int:
        """By the time it is at work, another thread has read the model anew."""
        before = weakref.ref(who.latest.found)
        who.latest.found = None
        gc.collect()
        alive.append(before() is not None)
        return 0  # nothing was made

    monkeypatch.setattr(f"{type(who).__module__}.library", lambda: Mock(regard_read=overtaken, regard_search=overtaken))
    assert ask() is None
    assert alive == [True]


@pytest.mark.skipif(sys.platform != "linux", reason="where processes are forked")
def test_a_forked_child_asks_on() -> None:
    """It has none of the threads that its parent had."""
    subprocess.run([sys.executable, "-c", ASKED + FORKED], check=True, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="where processes are forked")
def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    """Which was compiling, or reading the model, when it was forked."""
    subprocess.run([sys.executable, "-c", BUSY], check=True, timeout=60)


def test_where_no_other_threads_are_to_be_had_one_does_the_work_of_all() -> None:
    limit = os.environ | {"OMP_THREAD_LIMIT": "1"}
    subprocess.run([sys.executable, "-c", ASKED + ALONE], check=True, timeout=60, env=limit)
