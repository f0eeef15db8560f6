"""rms_norm, add_rms_norm, silu_mul and gather_rows with every ISA: against float64, and bit for bit
per row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from native_isas import ISAS, Kernels

Floats = npt.NDArray[np.float32]
EPS = 1e-5
WIDTHS = [1, 3, 8, 15, 16, 17, 63, 64, 65, 130, 576, 20000]


@pytest.fixture(params=ISAS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


def random(rows: int, columns: int, seed: int = 0) -> Floats:
    random = np.random.default_rng(seed)
    return (random.normal(0, 3, (rows, columns)) * 10.0 ** random.integers(-2, 2)).astype(
        np.float32
    )


def poisoned(rows: int, columns: int) -> Floats:
    return np.full((rows, columns), np.nan, dtype=np.float32)


def reference_norm(x: Floats, weight: Floats) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_is_its_formula(kernels: Kernels, width: int) -> None:
    x, weight, out = random(7, width), random(1, width, 1)[0], poisoned(7, width)
    kernels("rms_norm", [x, weight, out], reals=[EPS])
    np.testing.assert_allclose(out, reference_norm(x, weight), rtol=3e-6, atol=0)


@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm_gives_the_sum_and_its_norm(kernels: Kernels, width: int) -> None:
    x, residual, weight = random(7, width), random(7, width, 1), random(1, width, 2)[0]
    out, total = poisoned(7, width), poisoned(7, width)
    kernels("add_rms_norm", [x, residual, weight, out, total], reals=[EPS])
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_allclose(out, reference_norm(total, weight), rtol=3e-6, atol=0)


def test_norm_of_zeros_is_zero_and_of_nan_is_nan(kernels: Kernels) -> None:
    x, out = np.zeros((2, 40), np.float32), poisoned(2, 40)
    x[1, 39] = np.nan
    kernels("rms_norm", [x, np.ones(40, np.float32), out], reals=[EPS])
    assert (out[0] == 0).all() and np.isnan(out[1]).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_is_its_formula(kernels: Kernels, width: int) -> None:
    gate_up, out = random(5, 2 * width), poisoned(5, width)
    kernels("silu_mul", [gate_up, out])
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=2e-6, atol=1e-30)


def test_silu_mul_of_extreme_gates(kernels: Kernels) -> None:
    gate = np.array([[-1e4, -100, -0.0, 0.0, 100, 1e4, np.nan, np.inf]], np.float32)
    out = poisoned(1, 8)
    kernels("silu_mul", [np.concatenate([gate, np.full_like(gate, 2)], axis=1), out])
    # below 1e-33 instead of exactly zero: the exponential saturates
    assert (np.abs(out[0, :4]) < 1e-33).all()
    np.testing.assert_array_equal(out[0, 4:], np.array([200, 2e4, np.nan, np.inf], np.float32))


def test_gather_copies_the_rows_asked_for(kernels: Kernels) -> None:
    x, rows = random(9, 130), np.array([8, 0, 0, 3], np.int32)
    out = poisoned(4, 130)
    kernels("gather_rows", [x, rows, out])
    np.testing.assert_array_equal(out, x[rows])


@pytest.mark.parametrize("width", [64, 130, 1000])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_does_not_depend_on_its_batch_nor_on_threads(
    isa: str, threads: int, width: int
) -> None:
    """300 rows are several tasks."""
    one, many = Kernels(isa, 1), Kernels(isa, threads)
    x, residual, weight = random(300, width), random(300, width, 1), random(1, width, 2)[0]
    out, total, act = poisoned(300, width), poisoned(300, width), poisoned(300, width // 2)
    many("add_rms_norm", [x, residual, weight, out, total], reals=[EPS])
    many("silu_mul", [x[:, : width // 2 * 2], act])
    for row in (0, 17, 299):
        at = slice(row, row + 1)
        alone, total_alone, act_alone = (poisoned(1, n) for n in (width, width, width // 2))
        one("add_rms_norm", [x[at], residual[at], weight, alone, total_alone], reals=[EPS])
        one("silu_mul", [x[at, : width // 2 * 2], act_alone])
        np.testing.assert_array_equal(out[at], alone)
        np.testing.assert_array_equal(act[at], act_alone)


def test_strided_rows_leave_the_gaps_alone(kernels: Kernels) -> None:
    x, frame = random(6, 100), np.full((6, 100), 7, np.float32)
    out = frame[:, 10:50]
    kernels("rms_norm", [x[:, 20:60], np.ones(40, np.float32), out], reals=[EPS])
    np.testing.assert_allclose(out, reference_norm(x[:, 20:60], np.ones(40, np.float32)), rtol=3e-6)
    assert (frame[:, :10] == 7).all() and (frame[:, 50:] == 7).all()


def test_no_rows_need_no_work(kernels: Kernels) -> None:
    empty = np.empty((0, 16), np.float32)
    kernels("rms_norm", [empty, np.ones(16, np.float32), empty.copy()], reals=[EPS])
