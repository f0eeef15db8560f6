"""Every op, through the reference in float32 and through the native kernels of each ISA, against
the reference in float64. (Triton: `test_triton.py`.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernel_checks import differences, neighbours_matter

from penstock import _native
from penstock.kernels.load_ops import load_ops
from penstock.kernels.numpy_bridge import as_numpy, as_torch
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import Case, Op

# The emulated ISAs check the logic of the wide ones on any machine with AVX2, in a build that has
# them (PENSTOCK_EMULATED).
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
_NEEDS: dict[str, tuple[str, ...]] = {
    "scalar": (),
    "neon": ("asimddp",),
    "avx2": ("avx2", "fma", "f16c"),
    "avx_vnni": ("avx2", "fma", "f16c", "avx_vnni"),
    "emulated_avx512": ("avx2", "fma", "f16c"),
    "emulated_avx512_bf16": ("avx2", "fma", "f16c"),
    "emulated_amx": ("avx2", "fma", "f16c"),
    "avx512": _AVX512,
    "avx512_bf16": (*_AVX512, "avx512_bf16"),
    "amx": ("avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
}
_CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}") for op in all_ops() for case in op.cases
]
_NATIVE_CASES = [
    param
    for param in _CASES
    if "native" in param.values[0].order
    # A CPU gets 8-bit floats as bfloat16.
    and not param.values[1].kind.startswith("float8")
]
_ROW_CASES = [param for param in _NATIVE_CASES if param.values[0].alone is not None]


def _poisoned(shape: Any, dtype: Any = float, **_: Any) -> np.ndarray[Any, Any]:
    """Return the worst contents of `np.empty`: NaN, or the largest integer."""
    kind = np.dtype(dtype)
    return np.full(shape, np.nan if kind.kind == "f" else np.iinfo(kind).max, dtype=kind)


class NativeRun:
    """Computes ops with the native kernels of one ISA, on two threads."""

    def __init__(self, isa: str) -> None:
        by_isa = {"avx512_bf16": "in-bf16", "amx": "by-tiles"}
        by_isa |= dict.fromkeys(("avx2", "avx_vnni"), "as-int16")
        self.rounding = by_isa.get(isa.removeprefix("emulated_"), "")
        self._ops: Any = load_ops("native", pool=_native.ThreadPool(2), isa=isa)

    def __call__(self, op: Op, inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return as_torch(op.invoke(self._ops, as_numpy(inputs)))


@pytest.fixture(scope="module", params=_NEEDS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeRun]:
    """The native kernels of each ISA that this CPU can run."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    missing = [flag for flag in _NEEDS[request.param] if flag not in flags]
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(missing)}")
    if request.param not in _native.supported_isas():
        pytest.skip("the extension is built without this isa")
    yield NativeRun(request.param)


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_reference_in_float32_is_within_tolerance(op: Op, case: Case) -> None:
    ops = load_ops("reference")
    assert differences(op, case, lambda op, inputs: op.invoke(ops, inputs)) == []


@pytest.mark.parametrize(("op", "case"), _NATIVE_CASES)
def test_native_matches_the_reference_in_float64(
    native: NativeRun, op: Op, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "empty", _poisoned)
    assert differences(op, case, native, native.rounding) == []


@pytest.mark.parametrize(("op", "case"), _ROW_CASES)
def test_native_row_alone_has_the_bits_of_the_row_in_the_batch(
    native: NativeRun, op: Op, case: Case
) -> None:
    assert neighbours_matter(op, case, native) == []
