"""Comparison of an implementation with the reference in float64, for the tests here and for the
worker process in which Triton interprets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.ops import all_ops
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.registry import Case, Op

# Computes an op on the given inputs through one implementation.
Run = Callable[[Op, dict[str, Any]], tuple[torch.Tensor, ...]]


def in_float64(value: Any) -> Any:
    """Return the same inputs with every float tensor in float64."""
    return map_tensors(value, lambda t: t.double() if t.is_floating_point() else t.clone())


def copied(value: Any) -> Any:
    """Return a copy of the inputs, for ops that modify an argument."""
    return map_tensors(value, torch.clone)


@functools.cache
def _case_results(op_name: str, case_name: str) -> tuple[dict[str, Any], tuple[torch.Tensor, ...]]:
    """Return the inputs of a case and its expected results, cached for the next implementation."""
    op = next(op for op in all_ops() if op.name == op_name)
    case = next(case for case in op.cases if case.name == case_name)
    inputs = case.make_inputs(0)
    return inputs, op.invoke(ReferenceOps(torch.float64), in_float64(inputs))


def differences(op: Op, case: Case, run: Run, rounding: str = "") -> list[str]:
    """Return the errors of an implementation on this case, a line per wrong result.

    `rounding`: the rounding of the implementation; a kind for which the op declares a tolerance of
    `<kind>-<rounding>` has that one.
    """
    inputs, expected = _case_results(op.name, case.name)
    got = run(op, copied(inputs))
    wrong = []
    for index, (ours, truth) in enumerate(zip(got, expected, strict=True)):
        ours = ours.cpu()
        if ours.shape != truth.shape:
            wrong.append(f"result {index}: shape {tuple(ours.shape)}, not {tuple(truth.shape)}")
            continue
        kind = "f16" if ours.dtype == torch.float16 else case.kind
        tolerance = op.tolerance.get(f"{kind}-{rounding}", op.tolerance[kind])
        if not ours.dtype.is_floating_point and ours.dtype != truth.dtype:
            wrong.append(f"result {index}: {ours.dtype}, not {truth.dtype}")
        # The truth is NaN only on purpose: a row with NaN, or a cache slot that was not written.
        close = torch.isclose(
            ours.double(),
            truth.double(),
            rtol=tolerance.relative,
            atol=tolerance.absolute,
            equal_nan=True,
        )
        if not bool(close.all()):
            worst = (ours.double() - truth.double()).abs().nan_to_num(nan=float("inf")).max()
            wrong.append(f"result {index}: {int((~close).sum())} elements, off by up to {worst}")
    return wrong


def neighbours_matter(op: Op, case: Case, run: Run) -> list[int]:
    """Return which of the first and the last row change bits when computed alone."""
    assert op.alone is not None
    inputs, _ = _case_results(op.name, case.name)
    together = run(op, copied(inputs))[0]
    changed = []
    for index in sorted({0, len(together) - 1}):
        alone = run(op, copied(op.alone(inputs, index)))[0]
        if not torch.equal(alone[0].nan_to_num(), together[index].nan_to_num()):
            changed.append(index)
    return changed
