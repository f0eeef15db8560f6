"""The Triton kernels in Triton's interpreter, on CPU, over the registry's cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.kernels.ops import all_ops
from penstock.kernels.registry import Case, Op
from tests.support.triton_interpreter import Ask, interpreter_worker

pytest.importorskip("triton", reason="Triton has no build for this platform")

# The invariant kinds of each implementation, repeated here because the parent process does not
# import the kernels. Float products are left out: in the interpreter they are numpy's, whose sums
# depend on the row.
_INVARIANT_KINDS = {
    "embedding": ("float",),
    "rms_norm": ("float",),
    "add_rms_norm": ("float",),
    "linear": ("integer",),
    "rope_cache": ("float",),
    "silu_mul": ("float",),
    "gelu_mul": ("float",),
    "gelu_tanh_mul": ("float",),
    "route_experts": ("float",),
    "experts": ("integer",),
    "gelu": ("float",),
    "gelu_tanh": ("float",),
    "quick_gelu": ("float",),
    "silu": ("float",),
    "tanh": ("float",),
    "relu_squared": ("float",),
    "add": ("float",),
    "sigmoid_mul": ("float",),
    "silu_gate": ("float",),
    "norm_then_gate": ("float",),
    "gate_then_norm": ("float",),
    "layer_norm": ("float",),
    "add_layer_norm": ("float",),
    "mean_rows": ("float",),
    "l2_normalize": ("float",),
    "gather_rows": ("exact",),
    "replace_rows": ("exact",),
    "add_rows": ("float",),
    "mrope_rows": ("exact",),
    "adjust_logits": ("float",),
    "adjust_rows": ("float",),
    "sample": ("exact",),
}
_CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}")
    for op in all_ops()
    if "triton" in op.order
    for case in op.cases
]
# Larger cases of kernels that others cover, which the interpreter takes 10 to 40 seconds for.
_SLOW = {
    "attention-visible-beyond-window",
    "bidirectional_attention-wide-window-f32",
    "experts-int4_g128-down-int8_rows-T6-E4-top2-F96-W160",
    "gated_conv-wide",
    "lora-f16-rank256",
    "lora-i8-rank128",
}
_COMPARED = [
    pytest.param(*param.values, id=param.id, marks=pytest.mark.slow) if param.id in _SLOW else param
    for param in _CASES
]
_INVARIANT_CASES = [
    param
    for param in _CASES
    if param.values[1].kind in _INVARIANT_KINDS.get(param.values[0].name, ())
]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Ask the interpreting worker for a check of one case."""
    with interpreter_worker() as question:
        yield question


@pytest.mark.parametrize(("op", "case"), _COMPARED)
def test_kernel_matches_the_reference_in_float64(ask: Ask, op: Op, case: Case) -> None:
    assert ask("differences", op, case) == []


@pytest.mark.slow
@pytest.mark.parametrize(("op", "case"), _INVARIANT_CASES)
def test_row_alone_has_the_bits_of_the_row_in_the_batch(ask: Ask, op: Op, case: Case) -> None:
    assert ask("neighbours", op, case) == []


_DECODED = [
    param
    for param in _CASES
    if param.values[0].name == "attention" and "decode" in param.values[1].name
]
_PADDED = [param for param in _CASES if param.id in ("rope_cache-head-norm", "attention-mixed-f16")]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_units_listed_once_serve_every_layer(ask: Ask, op: Op, case: Case) -> None:
    assert ask("prepared", op, case) == []


@pytest.mark.slow
@pytest.mark.parametrize(("op", "case"), [*_DECODED, *_PADDED])
def test_padding_changes_nothing(ask: Ask, op: Op, case: Case) -> None:
    assert ask("padded", op, case) == []


# One case of each op in a decoder's step.
_SERVED = {
    "embedding": "bf16-50x64-T17",
    "rms_norm": "T17-W100",
    "add_rms_norm": "T3-W576",
    "silu_mul": "T17-F100",
    "linear": "bf16-T18-C64-N48",
    "experts": "bf16-favourites-T70-E8-top2-F32-W64",
    "rope_cache": "head-norm",
    "attention": "decode-long-window",
    "causal_conv": "drafts",
    "gated_delta_rule": "drafts-one-head",
    "state_space_scan": "narrow",
    "norm_then_gate": "T17-W96-3",
}
# Cases of models with more features.
_SERVED_TOO = {"experts-bf16-oai-T5-E4-top2-F64-W96", "attention-sinks-decode-window"}
_SERVED_CASES = [
    param for param in _CASES if param.id in {*map("-".join, _SERVED.items()), *_SERVED_TOO}
]


@pytest.mark.parametrize(("op", "case"), _SERVED_CASES)
def test_kernel_serves_in_bfloat16(ask: Ask, op: Op, case: Case) -> None:
    assert ask("rounded", op, case) == []


def test_each_op_has_a_case_in_bfloat16() -> None:
    assert len(_SERVED_CASES) == len(_SERVED) + len(_SERVED_TOO)


_DENSE = {
    "linear-f32-T5-C96-N24+8+8-bias",
    "linear-bf16-T18-C64-N48",
    "linear-f16-T17-C576-N64+64-bias",
    "experts-f32-uneven-T37-E6-top3-F40-W50",
    "experts-bf16-T1-E8-top4-F64-W96",
    "experts-f16-crowded-T70-E2-top1-F48-W72",
}


@pytest.mark.parametrize(("op", "case"), [param for param in _CASES if param.id in _DENSE])
def test_dense_weights_are_rounded_to_8_bits_on_request(ask: Ask, op: Op, case: Case) -> None:
    assert ask("rounded_weights", op, case) == []


_EIGHT_BITS = {
    "attention-decode-long",
    "attention-mixed-long",
    "attention-sinks-mixed-long",
    "rope_cache-mixed-f32",
}


@pytest.mark.parametrize(("op", "case"), [param for param in _CASES if param.id in _EIGHT_BITS])
def test_cache_of_eight_bits_is_written_and_read(ask: Ask, op: Op, case: Case) -> None:
    assert ask("eight_bits", op, case) == []
