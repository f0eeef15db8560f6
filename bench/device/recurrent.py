"""The ops of recurrent layers at served sizes, from the registry's benchmarks: their inputs on the
device, for comparison with float32 and for timing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.device.machine import Bench
from penstock.kernels.cases.gpu_layout import as_gpu_inputs
from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.ops.recurrent import (
    CAUSAL_CONV,
    GATED_CONV,
    GATED_DELTA_RULE,
    STATE_SPACE_SCAN,
)
from penstock.kernels.ops.recurrent_rows import GATE_THEN_NORM, NORM_THEN_GATE
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.registry import Case, Op

_OPS = (
    CAUSAL_CONV,
    GATED_CONV,
    GATED_DELTA_RULE,
    STATE_SPACE_SCAN,
    NORM_THEN_GATE,
    GATE_THEN_NORM,
)


@dataclass(frozen=True, slots=True)
class RecurrentCall:
    """One call of an op, with its inputs on the device in the served dtype."""

    op: Op
    case: Case
    bench: Bench
    inputs: dict[str, Any]

    @property
    def name(self) -> str:
        """The names of the op and of the case."""
        return f"{self.op.name} {self.case.name}"

    def run(self) -> torch.Tensor:
        """Return the result of the serving ops; nothing but the op is computed."""
        operands = (self.inputs[operand.name] for operand in self.op.operands)
        result: torch.Tensor = getattr(self.bench.ops, self.op.name)(*operands)
        return result

    def checked(self) -> torch.Tensor:
        """Return the result of the serving ops for a copy of the state."""
        copy = map_tensors(self.inputs, torch.clone)
        result: torch.Tensor = self.op.invoke(self.bench.ops, copy)[0]
        return result

    def truth(self) -> torch.Tensor:
        """Return the result of the reference in float32."""
        wide = map_tensors(
            self.inputs, lambda one: one.float() if one.is_floating_point() else one.clone()
        )
        ops = ReferenceOps(device=self.bench.device)
        result: torch.Tensor = self.op.invoke(ops, wide)[0]
        return result


def recurrent_calls(bench: Bench) -> Iterator[RecurrentCall]:
    """Yield a call for each benchmark of the ops, or for one small case each in a rehearsal."""
    for op in _OPS:
        for case in op.cases[:1] if bench.rehearsed else op.benchmarks:
            inputs = as_gpu_inputs(case.make_inputs(0), bench.dtype)
            moved = map_tensors(inputs, lambda one: one.to(bench.device))
            yield RecurrentCall(op, case, bench, moved)
