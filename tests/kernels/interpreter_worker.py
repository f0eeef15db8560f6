"""The worker process in which Triton interprets: it answers checks from stdin, one JSON line each.

Triton reads its switch when it is imported, and the compiler cannot be used beside the interpreter;
so this is a process of its own, started with TRITON_INTERPRET=1. With the path of an emulated CUDA
library as argument, the library's kernels serve where they can.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_checks import (
    alone,
    cut,
    cut_eight_bits,
    eight_bits,
    every_form,
    padded,
    prepared,
    rounded,
    rounded_weights,
    small_chunks,
    staged,
)
from kernel_checks import differences, neighbours_matter

from penstock.kernels.cases.gpu_layout import as_gpu_inputs
from penstock.kernels.cuda import CudaOps, open_library
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import Case, Op
from penstock.kernels.triton import TritonOps
from tests.support.triton_interpreter import INTERPRETED


def _answer(check: Callable[..., list[Any]], op: Op, case: Case, ops: TritonOps) -> list[Any]:
    try:
        return check(op, case, lambda op, inputs: op.invoke(ops, as_gpu_inputs(inputs)))
    except Exception:  # the outermost loop: one broken kernel must not hide the others
        return [traceback.format_exc(limit=-3)]


def main(library: str | None = None) -> None:
    assert INTERPRETED
    # torch fills allocated memory with NaN or the largest integer.
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.set_num_threads(1)
    ops, rounding = TritonOps("cpu"), TritonOps("cpu", torch.bfloat16)
    preferred = "triton"
    if library is not None:
        ops = rounding = CudaOps("cpu", torch.bfloat16, open_library(Path(library)))
        preferred = "cuda"
    narrow = ops if library is not None else TritonOps("cpu", torch.float16)
    served_by = {
        "rounded": rounding,
        "eight_bits": narrow,
        "rounded_weights": TritonOps("cpu", dense="float8"),
    }
    by_name = {op.name: op for op in all_ops()}
    checks = {"differences": differences, "neighbours": neighbours_matter}
    captured = {
        "prepared": prepared,
        "padded": padded,
        "rounded": rounded,
        "alone": alone,
        "cut": cut,
        "cut_eight_bits": cut_eight_bits,
        "eight_bits": eight_bits,
        "every_form": every_form,
        "staged": staged,
        "rounded_weights": rounded_weights,
        "small_chunks": small_chunks,
    }
    for line in sys.stdin:
        check, op_name, case_name = json.loads(line)
        op = by_name[op_name]
        case = next(case for case in op.cases if case.name == case_name)
        serving = ops.registry[op_name]
        assert serving.name == preferred, ops.registry.explain()
        assert check != "neighbours" or case.kind in serving.invariant_kinds or library
        if check in captured:
            answer = captured[check](op, case, served_by.get(check, ops))
        else:
            answer = _answer(checks[check], op, case, ops)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
