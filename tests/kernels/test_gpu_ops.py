"""Every op with a GPU kernel, on a GPU, over the registry's cases: Triton's kernels in float32, the
CUDA library's and Triton's in bfloat16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_checks import cut, cut_eight_bits, eight_bits, padded, prepared, rounded
from kernel_checks import differences

from penstock.kernels.cases.gpu_layout import as_gpu_inputs
from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import Case, Op

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


_CUDA_CASES = [
    param
    for param in _CASES
    if "cuda" in param.values[0].order and param.values[1].kind not in ("integer", "float8-rounded")
]
_DECODED = [param for param in _CUDA_CASES if "attention-decode" in str(param.id)]


@pytest.fixture(scope="module")
def ops() -> Any:
    from penstock.kernels.triton import TritonOps

    return TritonOps("cuda:0")


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_a_kernel_on_a_gpu_matches_the_reference_in_float64(ops: Any, op: Op, case: Case) -> None:
    def run(op: Op, inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        there = map_tensors(as_gpu_inputs(inputs), lambda tensor: tensor.to("cuda:0"))
        results = op.invoke(ops, there)
        torch.cuda.synchronize()
        return tuple(result.cpu() for result in results)

    assert differences(op, case, run, "on-tensor-cores") == []


@pytest.fixture(scope="module", params=["cuda", "triton"])
def serving(request: pytest.FixtureRequest) -> Any:
    """The ops that serve in bfloat16, with and without the CUDA library."""
    from penstock.kernels.cuda import CudaOps
    from penstock.kernels.triton import TritonOps

    if request.param == "triton":
        return TritonOps("cuda:0", torch.bfloat16)
    ops = CudaOps("cuda:0", torch.bfloat16)
    if ops.registry["attention"].name != "cuda":
        pytest.skip("; ".join(ops.registry.explain()))
    return ops


@pytest.mark.parametrize(("op", "case"), _CUDA_CASES)
def test_a_kernel_serves_in_bfloat16(serving: Any, op: Op, case: Case) -> None:
    assert rounded(op, case, serving) == []


@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_units_listed_once_serve_every_layer(serving: Any, op: Op, case: Case) -> None:
    assert prepared(op, case, serving) == []


@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_padding_changes_nothing(serving: Any, op: Op, case: Case) -> None:
    assert padded(op, case, serving) == []


_PROMPTS = [param for param in _CUDA_CASES if str(param.id).startswith("attention-prompt")]


@pytest.mark.parametrize(("op", "case"), _PROMPTS)
def test_rows_of_a_prompt_do_not_depend_on_its_chunks(serving: Any, op: Op, case: Case) -> None:
    assert cut(op, case, serving) == []


@pytest.mark.parametrize(("op", "case"), _PROMPTS)
def test_rows_of_a_prompt_do_not_depend_on_its_chunks_in_8_bits(
    serving: Any, op: Op, case: Case
) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("8-bit floats need compute capability 9.0")
    assert cut_eight_bits(op, case, serving) == []


_EIGHT_BITS = {
    "attention-decode-long",
    "attention-mixed-long",
    "attention-prompt-f16",
    "attention-prompt-window-f16",
    "rope_cache-mixed-f32",
}


@pytest.mark.parametrize(("op", "case"), [param for param in _CASES if param.id in _EIGHT_BITS])
def test_cache_of_eight_bits_is_written_and_read(ops: Any, op: Op, case: Case) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("8-bit floats need compute capability 9.0")
    assert eight_bits(op, case, ops) == []


@pytest.mark.parametrize(("op", "case"), [param for param in _CASES if param.id in _EIGHT_BITS])
def test_cache_of_eight_bits_serves_in_bfloat16(serving: Any, op: Op, case: Case) -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("8-bit floats need compute capability 9.0")
    assert eight_bits(op, case, serving) == []
