"""Every op with a Triton kernel on a GPU, over the registry's own cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_checks import differences

from penstock.kernels.draw import map_tensors
from penstock.kernels.op import Case, Op
from penstock.kernels.ops import all_ops
from penstock.kernels.served import as_served

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

_CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}")
    for op in all_ops()
    if "triton" in op.order
    for case in op.cases
]


@pytest.fixture(scope="module")
def ops() -> Any:
    from penstock.kernels.triton import TritonOps

    return TritonOps("cuda:0")


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_a_kernel_on_a_gpu_matches_the_reference_in_float64(ops: Any, op: Op, case: Case) -> None:
    def run(op: Op, inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        there = map_tensors(as_served(inputs), lambda tensor: tensor.to("cuda:0"))
        results = op.invoke(ops, there)
        torch.cuda.synchronize()
        return tuple(result.cpu() for result in results)

    assert differences(op, case, run) == []
