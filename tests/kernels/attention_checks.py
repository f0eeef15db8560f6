"""What a captured step relies on in the attention kernels, asked of the interpreting worker."""

from __future__ import annotations

import dataclasses

import torch
from kernel_checks import in_float64

from penstock.kernels.op import Case, Op
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.served import as_served
from penstock.kernels.table import StepInputs
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.attention_work import AttentionWork, most_units

Tensors = StepInputs[torch.Tensor]


def prepared(op: Op, case: Case, ops: TritonOps) -> list[str]:
    """What differs when the units are listed once, into memory for larger steps, and used for
    several layers, from calls that list their own."""
    inputs = as_served(case.draw(0))
    (alone,) = op.invoke(ops, inputs)
    heads, step, window = inputs["heads"], inputs["inputs"], inputs["window"]
    units = most_units(9, 5000)
    work = AttentionWork.allocate(9, units, heads, window, "cpu")
    work.parts.fill_(float("nan"))
    wrong = []
    for layer in range(2):
        work.plan(step)
        given = {**inputs, "inputs": dataclasses.replace(step, work={window: work})}
        if not torch.equal(op.invoke(ops, given)[0], alone):
            wrong.append(f"layer {layer} differs")
    if work.arrived.any():
        wrong.append("a counter of arrived parts is not zero afterwards")
    return wrong


def padded(op: Op, case: Case, ops: TritonOps) -> list[str]:
    """What differs when rows without tokens, and tokens without a slot, fill the step up."""
    inputs = as_served(case.draw(0))
    expected = op.invoke(ops, inputs)
    name = "q" if "q" in inputs else "qkv"
    count = len(inputs[name])
    more = {**inputs, "inputs": _padded(inputs["inputs"], 3)}
    more[name] = torch.cat((inputs[name], torch.full_like(inputs[name][:3], float("nan"))))
    if name == "qkv":
        more["cache"] = as_served(case.draw(0))["cache"]
    got = op.invoke(ops, more)
    equal = torch.equal(got[0][:count], expected[0]) and all(
        torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        for ours, theirs in zip(got[1:], expected[1:], strict=True)
    )
    return [] if equal else ["padding changed what is not padding"]


def rounded(op: Op, case: Case, ops: TritonOps) -> list[str]:
    """What is wrong of a case in bfloat16, the type that a GPU serves in."""
    inputs = as_served(case.draw(0), torch.bfloat16)
    truth = op.invoke(ReferenceOps(torch.float64), in_float64(inputs))
    wrong = []
    for index, (ours, expected) in enumerate(zip(op.invoke(ops, inputs), truth, strict=True)):
        if ours.dtype not in (torch.bfloat16, torch.float32):
            wrong.append(f"result {index} is {ours.dtype}")
        close = torch.isclose(ours.double(), expected, rtol=2e-2, atol=2e-2, equal_nan=True)
        if not bool(close.all()):
            wrong.append(f"result {index}: {int((~close).sum())} elements differ")
    return wrong


def _padded(step: Tensors, rows: int) -> Tensors:
    """With `rows` rows of one token that is of no sequence."""

    def grown(values: torch.Tensor, filler: int) -> torch.Tensor:
        return torch.cat((values, values.new_full((rows, *values.shape[1:]), filler)))

    last = int(step.query_starts[-1])
    return dataclasses.replace(
        step,
        tokens=grown(step.tokens, 0),
        positions=grown(step.positions, 0),
        slots=grown(step.slots, -1),
        query_starts=torch.cat(
            (step.query_starts, torch.arange(last + 1, last + rows + 1, dtype=torch.int32))
        ),
        context_lens=grown(step.context_lens, 0),
        block_tables=grown(step.block_tables, -1),
    )
