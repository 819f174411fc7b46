"""In bytes, a product is exactly what whole numbers give; in floats it is torch's."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.fast import build
from regard.fast.matrix import Matrix, in_bytes

PROCESSORS = {"plain C++": 127, "AVX2": 64, "AVX-512 VNNI": 127, "AMX": 127}  # and the most of a weight in bytes
SHAPES = [(1, 1), (3, 5), (16, 4), (17, 33), (100, 64), (40, 7), (15, 130)]  # outputs and inputs
COUNTS = [1, 2, 3, 4, 5, 6, 7, 13, 16, 17, 32, 45]
pytestmark = pytest.mark.usefixtures("accelerator")


def made(weight: Tensor, bias: Tensor | None = None, *, whole: bool, by: str | None = None) -> Matrix:
    try:
        return Matrix(weight, bias, whole=whole, kernels=by)
    except ValueError as error:
        pytest.skip(str(error))


def exact(x: Tensor, weight: Tensor, most: int) -> np.ndarray:
    """The same in whole numbers of 64 bits."""
    vectors, rows, nothing = x.numpy(), weight.numpy(), np.float32(0)
    top, depth = (np.maximum(sign * vectors, nothing).max(1, keepdims=True) for sign in (1, -1))
    zero = np.rint(depth * (np.float32(255) / (top + depth)))
    bytes_of_x = np.minimum(np.rint(vectors * (np.float32(255) / (top + depth))) + zero, 255)
    largest = np.abs(rows).max(1, keepdims=True)
    bytes_of_w = np.rint(rows * (np.float32(most) / largest))
    total = (bytes_of_x - zero).astype(np.int64) @ bytes_of_w.astype(np.int64).T
    scale = (largest / np.float32(most)).T * ((top + depth) / np.float32(255))
    return total.astype(np.float32) * scale


@pytest.mark.parametrize("by", PROCESSORS)
@pytest.mark.parametrize(("tall", "wide"), SHAPES)
def test_a_product_in_bytes_is_the_exact_one_of_whole_numbers(tall: int, wide: int, by: str) -> None:
    weight = torch.randn(tall, wide)
    matrix = made(weight, whole=True, by=by)
    for count in COUNTS:
        x = torch.randn(count, wide) * torch.rand(count, 1).exp()
        np.testing.assert_array_equal(matrix.product(x).numpy(), exact(x, weight, PROCESSORS[by]))


@pytest.mark.parametrize("by", PROCESSORS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_numbers_there_are_do_not_overflow(sign: float, by: str) -> None:
    """Every product of two bytes is as large as it can be, and so is the sum of two of them."""
    wide = 4096
    weight, x = torch.full((16, wide), sign), torch.ones(4, wide)
    np.testing.assert_array_equal(made(weight, whole=True, by=by).product(x).numpy(), np.full((4, 16), sign * wide))


@pytest.mark.parametrize("by", PROCESSORS)
@pytest.mark.parametrize(("tall", "wide"), SHAPES)
def test_a_product_in_floats_is_torchs(tall: int, wide: int, by: str) -> None:
    weight, bias = torch.randn(tall, wide), torch.randn(tall)
    matrix = made(weight, bias, whole=False, by=by)
    for count in COUNTS:
        x = torch.randn(count, wide)
        torch.testing.assert_close(matrix.product(x), x @ weight.T + bias, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("by", PROCESSORS)
def test_a_vector_becomes_the_same_whoever_stands_beside_it(by: str, whole: bool) -> None:
    matrix = made(torch.randn(37, 50), torch.randn(37), whole=whole, by=by)
    x = torch.randn(401, 50)
    together = matrix.product(x)
    assert torch.equal(together, torch.cat([matrix.product(row) for row in x.split([1] * 9 + [392])]))
    assert torch.equal(together[5:17], matrix.product(x[5:17]))
    beside = torch.cat([x[:1], 1000 * x])
    assert torch.equal(matrix.product(beside)[:1], together[:1])


def test_processors_with_as_fine_steps_agree_in_bytes_to_the_last_bit() -> None:
    weight, bias, x = torch.randn(33, 70), torch.randn(33), torch.randn(9, 70)
    found: dict[int, list[Tensor]] = {}
    for by, most in PROCESSORS.items():
        try:
            y = Matrix(weight, bias, whole=True, kernels=by).product(x)
        except ValueError:
            continue
        found.setdefault(most, []).append(y)
    assert all(torch.equal(one, some[0]) for some in found.values() for one in some)
    errors = {most: float((some[0] - x @ weight.T - bias).norm()) for most, some in found.items()}
    assert errors[127] < 0.8 * errors.get(64, float("inf"))


def test_tiles_are_used_where_processor_and_compiler_have_them() -> None:
    told = Path("/proc/cpuinfo")
    if not told.exists() or "amx_int8" not in told.read_text() or os.environ.get("REGARD_FAST"):
        pytest.skip("this processor has no tiles, or is not to use them")
    version = subprocess.check_output([*build.compiler(), "-dumpversion"], text=True)
    if int(version.split(".")[0]) < 12:
        pytest.skip("a compiler of this age may not know tiles")
    assert build.library().regard_processor() == b"AMX"


def test_nothing_becomes_the_bias() -> None:
    matrix = made(torch.randn(5, 6), bias := torch.randn(5), whole=True)
    assert torch.equal(matrix.product(torch.zeros(2, 3, 6)), bias.expand(2, 3, 5))
    empty = made(torch.zeros(5, 6), bias, whole=True)
    assert torch.equal(empty.product(torch.randn(4, 6)), bias.expand(4, 5))
    assert matrix.product(torch.empty(0, 6)).shape == (0, 5)


@pytest.mark.parametrize("by", PROCESSORS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 5, 20])
def test_in_bytes_what_is_no_number_stays_none_and_spoils_nobody_else(place: int, wrong: float, by: str) -> None:
    weight, x = torch.randn(5, 21), torch.randn(4, 21)
    right = made(weight, whole=True, by=by).product(x)
    vectors = x.index_put((torch.tensor(2), torch.tensor(place)), torch.tensor(wrong))
    found = made(weight, whole=True, by=by).product(vectors)
    assert found[2].isnan().all()
    assert torch.equal(found[[0, 1, 3]], right[[0, 1, 3]])
    weight[3, place] = wrong
    found = made(weight, whole=True, by=by).product(x)
    assert found[:, 3].isnan().all()
    assert torch.equal(found[:, [0, 1, 2, 4]], right[:, [0, 1, 2, 4]])


@pytest.mark.parametrize("by", PROCESSORS)
@pytest.mark.parametrize("small", [1e-38, 1e-42])
def test_in_bytes_what_is_next_to_nothing_becomes_nothing(small: float, by: str) -> None:
    weight, x = torch.randn(5, 21), torch.randn(4, 21)
    assert not made(weight, whole=True, by=by).product(small * x).any()
    assert not made(small * weight, whole=True, by=by).product(x).any()


def test_in_bytes_a_product_is_off_by_little() -> None:
    """Of normal numbers; the two roundings are independent, and so is what they do to each term of the sum."""
    weight, x = torch.randn(256, 512), torch.randn(64, 512)
    right = x @ weight.T
    off = made(weight, whole=True).product(x) - right
    assert 0.005 < float(off.std() / right.std()) < 0.025


def test_what_is_too_wide_or_of_another_precision_stays_as_it_is() -> None:
    assert in_bytes(torch.randn(8, 8), None) is not None
    assert in_bytes(torch.zeros(1, 2**16 + 1), None) is None
    assert in_bytes(torch.zeros(256, 256), None) is not None
    assert in_bytes(torch.zeros(256, 256, dtype=torch.float64), None) is None


def test_kernels_that_are_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot run the kernels for abacus; leave them out"):
        Matrix(torch.ones(1, 1), None, whole=True, kernels="abacus")


WITHOUT_ROOM = """
import resource, torch
from regard.fast.matrix import Matrix
weight, small = torch.ones(20_000, 3_000), Matrix(torch.ones(2, 2), None, whole=False)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26,) * 2)
try:
    Matrix(weight, None, whole=False)
except MemoryError as error:
    print(error)
print(small.product(torch.ones(1, 2)).tolist())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="how much memory there is, Linux tells")
def test_without_room_for_a_matrix_the_process_lives_on() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_ROOM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no room for a matrix of 20000 × 3000\n" in done.stdout
    assert done.stdout.endswith("[[2.0, 2.0]]\n")


def test_two_do_not_share_native_memory() -> None:
    matrix = made(torch.ones(1, 1), whole=True)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="no copy; make another of the same weight"):
            copied(matrix)
