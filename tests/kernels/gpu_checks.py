"""Checks of the properties that a step on a GPU relies on: bfloat16, units listed once, padding."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from unittest import mock

import torch
from kernel_checks import in_float64

from penstock.kernels.cases.gpu_layout import as_gpu_inputs, in_float8_cache
from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.cuda import CudaOps, Library
from penstock.kernels.cuda import linear as cuda_linear
from penstock.kernels.cuda.tuning import OF_OPS, VALUES
from penstock.kernels.kv_splits import SIZES, forced_splits
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.registry import Case, Op
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import linear_choice
from penstock.kernels.triton.paged_attention.decode_attention import decode_tokens
from penstock.kernels.triton.paged_attention.decode_work import AttentionWork, most_units

Tensors = StepInputs[torch.Tensor]
Cache = LayerCache[torch.Tensor]


def prepared(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the differences between calls that list their own units, and calls of several layers
    that share a list made once, in memory for larger steps."""
    inputs = _served(case, ops)
    (alone,) = op.invoke(ops, inputs)
    heads, step, window = inputs["heads"], inputs["inputs"], inputs["window"]
    units = most_units(20, 5000)
    work = AttentionWork.allocate(20, units, heads, window, ops.device)
    work.parts.fill_(float("nan"))
    wrong = []
    for layer in range(2):
        work.plan(step)
        given = {**inputs, "inputs": dataclasses.replace(step, work={(heads, window): work})}
        if not torch.equal(op.invoke(ops, given)[0], alone):
            wrong.append(f"layer {layer} differs")
    if work.arrived.any():
        wrong.append("a counter of arrived parts is not zero afterwards")
    return wrong


def every_form(op: Op, case: Case, ops: CudaOps) -> list[str]:
    """Return the forms of the CUDA library's kernels whose bits differ from the form that
    serves."""
    assert isinstance(ops.library, Library)
    names = OF_OPS[op.name]
    expected = op.invoke(ops, _served(case, ops))
    wrong = []
    for values in itertools.product(*(VALUES[name] for name in names)):
        form = dict(zip(names, values, strict=True))
        with ops.library.tuned(**form):
            got = op.invoke(ops, _served(case, ops))
        if not all(map(torch.equal, got, expected)):
            wrong.append(f"other results with {form}")
    return wrong


def small_chunks(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the errors of decode attention that divides short contexts into smaller splits."""
    wrong = []
    for size in SIZES:
        with forced_splits(size):
            found = [*rounded(op, case, ops), *alone(op, case, ops), *prepared(op, case, ops)]
            wrong += [f"chunks of {size}: {complaint}" for complaint in found]
    return wrong


def staged(op: Op, case: Case, ops: CudaOps) -> list[str]:
    """Return the errors of a product by the kernel "staged": its results, and the bits of a row
    alone. Also with enough blocks that several share a tile, and that shares end within one."""
    wrong = []
    for name, blocks in (
        ("", cuda_linear.staged_blocks),
        (" of 7 blocks", lambda stages, _: min(stages, 7)),
        (" of short shares", lambda stages, _: -(-stages // 3)),
    ):
        with linear_choice.staged(), mock.patch.object(cuda_linear, "staged_blocks", blocks):
            wrong += [f"{line}{name}" for line in _wrong_staged(op, case, ops)]
    return wrong


def _wrong_staged(op: Op, case: Case, ops: CudaOps) -> list[str]:
    assert isinstance(ops.library, Library) and op.alone is not None
    ops.library.called.clear()
    wrong = rounded(op, case, ops)
    if "staged_linear" not in ops.library.called:
        wrong.append("another kernel computed it")
    inputs = _served(case, ops)
    (together,) = op.invoke(ops, inputs)
    for index in sorted({0, len(together) - 1}):
        (row,) = op.invoke(ops, op.alone(inputs, index))
        if not torch.equal(row[0].nan_to_num(), together[index].nan_to_num()):
            wrong.append(f"row {index} has other bits alone")
    return wrong


def padded(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the differences that padding makes: rows without tokens, and tokens without a slot."""
    inputs = _served(case, ops)
    expected = op.invoke(ops, inputs)
    name = "q" if "q" in inputs else "qkv"
    count = len(inputs[name])
    more = {**inputs, "inputs": _padded(inputs["inputs"], 3)}
    more[name] = torch.cat((inputs[name], torch.full_like(inputs[name][:3], float("nan"))))
    if name == "qkv":
        more["cache"] = _served(case, ops)["cache"]
    got = op.invoke(ops, more)
    equal = torch.equal(got[0][:count], expected[0]) and all(
        torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        for ours, theirs in zip(got[1:], expected[1:], strict=True)
    )
    return [] if equal else ["padding changed what is not padding"]


def cut(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the rows of the longest chunk that change when it is computed in two parts, both
    longer than decode attention serves."""
    return _cut(op, _served(case, ops), ops)


def cut_eight_bits(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Like `cut`, with a cache of float8_e4m3fn."""
    held, _ = in_float8_cache(as_gpu_inputs(case.make_inputs(0), ops.dtype)["cache"])
    cache = map_tensors(held, lambda tensor: tensor.to(ops.device))
    return _cut(op, {**_served(case, ops), "cache": cache}, ops)


def _cut(op: Op, inputs: dict[str, Any], ops: TorchOps) -> list[str]:
    step = inputs["inputs"]
    together = op.invoke(ops, inputs)[0]
    row = int(step.query_starts.diff().argmax())
    start, end = step.query_starts[row : row + 2].tolist()
    wrong = []
    for first in (decode_tokens(inputs["heads"]) + 1, (end - start) // 2 + 1):
        for part in (slice(start, start + first), slice(start + first, end)):
            given = {**inputs, "q": inputs["q"][part], "inputs": _part_of_row(step, row, part)}
            if not torch.equal(op.invoke(ops, given)[0], together[part]):
                wrong.append(f"tokens {part.start} to {part.stop} depend on the others")
    return wrong


def _part_of_row(step: Tensors, row: int, part: slice) -> Tensors:
    """Return the step of some neighbouring tokens of one row."""
    later = int(step.query_starts[row + 1]) - part.stop
    starts = torch.tensor([0, part.stop - part.start]).to(step.query_starts)
    return dataclasses.replace(
        step,
        tokens=step.tokens[part],
        positions=step.positions[part],
        slots=step.slots[part],
        query_starts=starts,
        context_lens=step.context_lens[row : row + 1] - later,
        block_tables=step.block_tables[row : row + 1],
    )


def rounded(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the errors of a case in bfloat16, the type in which a GPU serves."""
    inputs = as_gpu_inputs(case.make_inputs(0), torch.bfloat16)
    truth = op.invoke(ReferenceOps(torch.float64), in_float64(inputs))
    got = op.invoke(ops, map_tensors(inputs, lambda tensor: tensor.clone().to(ops.device)))
    wrong = []
    for index, (ours, expected) in enumerate(zip(got, truth, strict=True)):
        if not ours.is_floating_point():
            if not torch.equal(ours.cpu(), expected):
                wrong.append(f"result {index}: {ours.tolist()}, not {expected.tolist()}")
            continue
        if ours.dtype not in (torch.bfloat16, torch.float32):
            wrong.append(f"result {index} is {ours.dtype}")
        # Terms of a sum are rounded, so its error has their size.
        size = max(1.0, float(expected.nan_to_num(posinf=0, neginf=0).square().mean().sqrt()))
        close = torch.isclose(
            ours.cpu().double(), expected, rtol=2e-2, atol=2e-2 * size, equal_nan=True
        )
        if not bool(close.all()):
            wrong.append(f"result {index}: {int((~close).sum())} elements differ")
    return wrong


def eight_bits(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the errors of attention over, or of writes to, a cache of float8_e4m3fn."""
    wide = torch.float16 if ops.dtype == torch.float32 else ops.dtype
    inputs = as_gpu_inputs(case.make_inputs(0), wide)
    if "qkv" in inputs:
        _make_exact(inputs)
    cache, meant = in_float8_cache(inputs["cache"])
    if "q" in inputs:  # NaN in slots that were not written
        cache.keys.view(torch.uint8)[inputs["cache"].keys.isnan()] = 0x7F
        cache.values.view(torch.uint8)[inputs["cache"].values.isnan()] = 0x7F
    truth = op.invoke(ReferenceOps(torch.float64), in_float64({**inputs, "cache": meant}))
    there = map_tensors({**inputs, "cache": cache}, lambda tensor: tensor.to(ops.device))
    out, *written = (result.cpu().double() for result in op.invoke(ops, there))
    assert cache.key_scales is not None
    got = [out, *(part * cache.key_scales[:, None, None] for part in written)]
    close = [
        torch.allclose(ours, expected, rtol=1e-2, atol=1e-2)
        for ours, expected in zip(got, truth, strict=True)
    ]
    return [] if all(close) else [f"results that agree: {close}"]


def rounded_weights(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return the errors of a case with dense weights rounded to 8 bits: each is off by up to 2^-4,
    so a product by 2.6 % of its size, and the three of an expert by 4.5 %."""
    most = {"linear": 0.04, "experts": 0.065}[op.name]
    inputs = _served(case, ops)
    (truth,) = op.invoke(ReferenceOps(torch.float64), in_float64(inputs))
    (got,) = op.invoke(ops, inputs)
    error = float((got.cpu().double() - truth).square().mean() / truth.square().mean()) ** 0.5
    return [] if 0.01 < error < most else [f"the error is {error} of the product"]


def _make_exact(inputs: dict[str, Any]) -> None:
    """Return small integers that no rotation changes: Triton's interpreter (3.9) loses the carry if
    rounding to 8-bit floats overflows the mantissa."""
    inputs["qkv"] = inputs["qkv"].round().clamp(-8, 8)
    cosines, sines = inputs["rope"].chunk(2, dim=1)
    inputs["rope"] = torch.cat((torch.ones_like(cosines), torch.zeros_like(sines)), dim=1)


def alone(op: Op, case: Case, ops: TorchOps) -> list[str]:
    """Return which of the first and the last row change when computed alone."""
    assert op.alone is not None
    inputs = _served(case, ops)
    together = op.invoke(ops, inputs)[0]
    wrong = []
    for index in (0, len(together) - 1):
        single = op.invoke(ops, op.alone(_served(case, ops), index))[0]
        if not torch.equal(single[0], together[index]):
            wrong.append(f"row {index} depends on the others")
    return wrong


def _served(case: Case, ops: TorchOps) -> dict[str, Any]:
    dtype = None if ops.dtype == torch.float32 else ops.dtype
    moved: dict[str, Any] = map_tensors(
        as_gpu_inputs(case.make_inputs(0), dtype), lambda tensor: tensor.to(ops.device)
    )
    return moved


def _padded(step: Tensors, rows: int) -> Tensors:
    """Return the step with padding up to `rows` rows of one token."""

    def grown(values: torch.Tensor, filler: int) -> torch.Tensor:
        return torch.cat((values, values.new_full((rows, *values.shape[1:]), filler)))

    last = int(step.query_starts[-1])
    return dataclasses.replace(
        step,
        tokens=grown(step.tokens, 0),
        positions=grown(step.positions, 0),
        slots=grown(step.slots, -1),
        query_starts=torch.cat(
            (step.query_starts, torch.arange(last + 1, last + rows + 1).to(step.query_starts))
        ),
        context_lens=grown(step.context_lens, 0),
        block_tables=grown(step.block_tables, -1),
    )
