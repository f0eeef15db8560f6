"""`pytest bench/ops`: the time of each op at real sizes, and its share of the roofline.

A case runs repeatedly over the same memory, so its bandwidth is compared with the machine's read
rate for a working set of that size: from a cache, if it fits into one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from bench.ops.conftest import Findings, Line
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.numpy_bridge import as_numpy
from penstock.kernels.ops import all_ops
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.registry import Case, Op

_CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}")
    for op in all_ops()
    if "native" in op.order
    for case in op.benchmarks
]


class PackedOnce:
    """An `Ops` that packs weights on first use, as a model's are at load."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self._packed: dict[int, Any] = {}

    def pack_linear(self, weight: Any) -> Any:
        return self._once(self._ops.pack_linear, weight)

    def pack_head_linear(self, weight: Any) -> Any:
        return self._once(self._ops.pack_head_linear, weight)

    def pack_embedding(self, table: Any) -> Any:
        return self._once(self._ops.pack_embedding, table)

    def _once(self, pack: Callable[[Any], Any], weight: Any) -> Any:
        if id(weight) not in self._packed:
            self._packed[id(weight)] = pack(weight)
        return self._packed[id(weight)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def _ops_and_inputs(implementation: str, inputs: dict[str, Any]) -> tuple[PackedOnce, Any]:
    if implementation == "reference":
        return PackedOnce(ReferenceOps()), inputs
    pool = Pool(len(os.sched_getaffinity(0)))
    return PackedOnce(NativeOps.eager(pool)), as_numpy(inputs)


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_op(benchmark: Any, findings: Findings, op: Op, case: Case, implementation: str) -> None:
    drawn = case.make_inputs(0)
    cost = op.cost(drawn)
    ops, inputs = _ops_and_inputs(implementation, drawn)
    benchmark(op.invoke, ops, inputs)
    integer = op.name == "linear" and case.kind == "integer"
    median_s = benchmark.stats.stats.median
    findings.lines.append(Line(op.name, case.name, implementation, median_s, cost, integer))
    benchmark.extra_info.update(
        gb_s=cost.moved_bytes / median_s / 1e9, gop_s=cost.operations / median_s / 1e9
    )
