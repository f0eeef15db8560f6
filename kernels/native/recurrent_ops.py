"""The native kernels of recurrent layers as methods of `BackendOps`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np

from penstock.kernels.native.backend import CallBackend
from penstock.kernels.recurrent_state import ConvState, MatrixState, StateRows
from penstock.kernels.step_inputs import StepInputs

Tensor = TypeVar("Tensor")


def state_operands(rows: StateRows[Any]) -> tuple[Any, ...]:
    """Return the fields of `rows` in the order of kernels and plans."""
    return (rows.source, rows.base, rows.target, rows.keep, rows.save, rows.save_after)


def _chunk_operands(inputs: StepInputs[Any]) -> tuple[Any, ...]:
    if inputs.states is None:
        raise ValueError("inputs.states: is None, expected the states of the rows")
    return (inputs.query_starts, inputs.context_lens, *state_operands(inputs.states))


class BackendRecurrentOps(Generic[Tensor]):
    """The ops of `RecurrentOps` whose kernels take more than tensors and real numbers."""

    _backend: CallBackend[Tensor]

    def causal_conv(
        self,
        x: Tensor,
        weight: Any,
        bias: Any | None,
        inputs: StepInputs[Tensor],
        state: ConvState[Any],
    ) -> Tensor:
        return self._convolution("causal_conv", x, weight, bias, inputs, state)

    def gated_conv(
        self,
        x: Tensor,
        weight: Any,
        bias: Any | None,
        inputs: StepInputs[Tensor],
        state: ConvState[Any],
    ) -> Tensor:
        return self._convolution("gated_conv", x, weight, bias, inputs, state)

    def _convolution(
        self,
        kernel: str,
        x: Tensor,
        weight: Any,
        bias: Any | None,
        inputs: StepInputs[Tensor],
        state: ConvState[Any],
    ) -> Tensor:
        channels = weight.shape[0]
        if bias is None:
            bias = np.zeros(channels, np.float32)
        out = self._backend.empty(x, channels)
        tensors = [x, weight, bias, *_chunk_operands(inputs), state.recent, state.saved, out]
        self._backend.call(kernel, tensors)
        return out

    def gated_delta_rule(
        self,
        qkv: Tensor,
        gates: Tensor,
        decay: Any,
        inputs: StepInputs[Tensor],
        state: MatrixState[Any],
        heads: tuple[int, int, int, int],
        beta_scale: float,
    ) -> Tensor:
        operands = (qkv, gates, decay)
        return self._scan("gated_delta_rule", operands, inputs, state, heads, (beta_scale,))

    def state_space_scan(
        self,
        xbc: Tensor,
        dt: Tensor,
        constants: Any,
        inputs: StepInputs[Tensor],
        state: MatrixState[Any],
        heads: tuple[int, int, int, int],
        dt_limits: tuple[float, float],
    ) -> Tensor:
        operands = (xbc, dt, constants)
        return self._scan("state_space_scan", operands, inputs, state, heads, dt_limits)

    def _scan(
        self,
        kernel: str,
        operands: tuple[Tensor, Tensor, Any],
        inputs: StepInputs[Tensor],
        state: MatrixState[Any],
        heads: tuple[int, int, int, int],
        reals: tuple[float, ...],
    ) -> Tensor:
        out = self._backend.empty(operands[0], heads[1] * heads[3])
        states = (state.matrix, state.keys, state.values, state.decays)
        tensors = [*operands, *_chunk_operands(inputs), *states, out]
        self._backend.call(kernel, tensors, [*heads, self._backend.pool.threads], reals)
        return out

    def norm_then_gate(
        self, x: Tensor, gate: Tensor, weight: Any, eps: float, groups: int
    ) -> Tensor:
        return self._gated_norm("norm_then_gate", x, gate, weight, eps, groups)

    def gate_then_norm(
        self, x: Tensor, gate: Tensor, weight: Any, eps: float, groups: int
    ) -> Tensor:
        return self._gated_norm("gate_then_norm", x, gate, weight, eps, groups)

    def _gated_norm(
        self, kernel: str, x: Tensor, gate: Tensor, weight: Any, eps: float, groups: int
    ) -> Tensor:
        out = self._backend.empty(x, weight.shape[0])
        self._backend.call(kernel, [x, gate, weight, out], [groups], [eps])
        return out
