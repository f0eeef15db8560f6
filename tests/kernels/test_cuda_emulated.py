"""The CUDA kernels, compiled as C++ and run thread by thread on the CPU, over the registry's cases.

Index arithmetic, fragment layouts, masks and barriers are those of the GPU; see
csrc/cuda/emulated.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_cuda import emulated_library

from penstock.kernels.cuda.tuning import OF_OPS
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import Case, Op
from tests.support.triton_interpreter import Ask, interpreter_worker

pytest.importorskip("triton", reason="Triton has no build for this platform")

_CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}")
    for op in all_ops()
    if "cuda" in op.order
    for case in op.cases
    # Triton serves, and its tests cover, calls for which these have no CUDA form.
    if op.name != "linear" or case.kind in ("f32", "f16", "bf16", "float8")
]
_DECODED = [
    param
    for param in _CASES
    if str(param.id).startswith(("attention-decode", "attention-sinks-decode"))
]
# Token 0 and the last, alone: float sums must not depend on the batch either.
_ALONE = [
    param
    for param in _CASES
    if param.id
    in {
        "attention-decode-long",
        "attention-decode-f16",
        "attention-sinks-decode-long",
        "linear-bf16-T18-C64-N48",
        "linear-f8_tile-T16-C256-N128+128-bias",
        "rope_cache-head-norm",
        "add_rms_norm-T3-W576",
        "sample-mixed",
    }
]


# Cases of kernels that have several forms.
_FORMS = [
    param for param in _CASES if param.values[0].name in OF_OPS and param.values[1].kind != "float8"
]


# Chunks longer than decode attention serves.
_PROMPTS = {
    "attention-prompt-f16",
    "attention-prompt-window-f16",
    "attention-mixed-long",
    "attention-sinks-mixed-long",
    "attention-sinks-prompt-window",
}
_PROMPT_CASES = [param for param in _CASES if param.id in _PROMPTS]

# Products of whole stages of the kernel "staged".
_STAGED = [
    param
    for param in _CASES
    if str(param.id).startswith(("linear-bf16", "linear-f8"))
    and not any(part in str(param.id) for part in ("-C200", "-C2080", "-C1056", "rounded"))
]


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Path:
    return emulated_library(request.config)


@pytest.fixture(scope="module")
def ask(library: Path) -> Iterator[Ask]:
    """Ask a worker for a check of one case; Triton's interpreter serves the calls that CUDA does
    not."""
    with interpreter_worker(str(library)) as question:
        yield question


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_kernel_matches_the_reference(ask: Ask, op: Op, case: Case) -> None:
    assert ask("differences" if case.kind == "exact" else "rounded", op, case) == []


@pytest.mark.slow
@pytest.mark.parametrize(("op", "case"), _FORMS)
def test_every_form_of_a_kernel_gives_the_same_bits(ask: Ask, op: Op, case: Case) -> None:
    assert ask("every_form", op, case) == []


@pytest.mark.parametrize(("op", "case"), _ALONE)
def test_row_alone_has_the_bits_of_the_row_in_the_batch(ask: Ask, op: Op, case: Case) -> None:
    assert ask("alone", op, case) == []


@pytest.mark.parametrize(("op", "case"), _STAGED)
def test_staged_product_matches_the_reference_and_a_row_alone(ask: Ask, op: Op, case: Case) -> None:
    assert ask("staged", op, case) == []


@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_units_listed_once_serve_every_layer(ask: Ask, op: Op, case: Case) -> None:
    assert ask("prepared", op, case) == []


@pytest.mark.slow
@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_chunks_of_any_size_give_the_same_rows(ask: Ask, op: Op, case: Case) -> None:
    assert ask("small_chunks", op, case) == []


@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_padding_changes_nothing(ask: Ask, op: Op, case: Case) -> None:
    assert ask("padded", op, case) == []


@pytest.mark.parametrize(("op", "case"), _PROMPT_CASES)
def test_rows_of_a_prompt_do_not_depend_on_its_chunks(ask: Ask, op: Op, case: Case) -> None:
    assert ask("cut", op, case) == []


@pytest.mark.parametrize(("op", "case"), _PROMPT_CASES)
def test_rows_of_a_prompt_do_not_depend_on_its_chunks_in_8_bits(
    ask: Ask, op: Op, case: Case
) -> None:
    assert ask("cut_eight_bits", op, case) == []


def test_each_prompt_is_a_case() -> None:
    assert len(_PROMPT_CASES) == len(_PROMPTS)


@pytest.mark.parametrize(("op", "case"), _PROMPT_CASES[:1])
def test_padding_changes_no_prefill(ask: Ask, op: Op, case: Case) -> None:
    assert ask("padded", op, case) == []


_EIGHT_BITS = {
    "attention-decode-long-window",
    "attention-sinks-decode-window",
    "attention-mixed-f16",
    "rope_cache-mixed-9x3x64",
    *_PROMPTS,
}


@pytest.mark.parametrize(("op", "case"), [param for param in _CASES if param.id in _EIGHT_BITS])
def test_cache_of_eight_bits_is_written_and_read(ask: Ask, op: Op, case: Case) -> None:
    assert ask("eight_bits", op, case) == []
