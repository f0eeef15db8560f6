"""The inputs of one decoder layer in a step, and the linear layers with LoRA updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.kernels.lora_slots import AdapterSlots
from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import LayerState
from penstock.kernels.step_inputs import AdapterRows, LayerCache, StepInputs

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class Rotation(Generic[Tensor]):
    """A RoPE table with one row per token of a step. `inputs`: the step with the rows of this table
    as positions."""

    table: Tensor
    inputs: StepInputs[Tensor]


class LoraLinears(Generic[Tensor]):
    """Computes the linear layers of a step and adds the LoRA updates.

    - `numbers`: the name of each linear layer of the current decoder layer -> its number; see
      `lora_targets.linear_numbers`.
    - `rows`: the adapter slot of each token; None if no token uses an adapter.
    - `is_prompt`: see `StepInputs`.
    """

    def __init__(
        self, ops: Ops[Tensor], slots: AdapterSlots | None, inputs: StepInputs[Tensor]
    ) -> None:
        self._ops = ops
        self._slots = slots
        self.rows: AdapterRows[Tensor] | None = inputs.adapters
        self.is_prompt = inputs.is_prompt
        self.numbers: Mapping[str, int] = {}

    def gather(self, inputs: StepInputs[Tensor]) -> None:
        """Compute the layers for the sampled tokens alone from now on."""
        self.rows, self.is_prompt = inputs.sampled_adapters, inputs.sampled_is_prompt

    def __call__(self, x: Tensor, weight: Any, name: str) -> Tensor:
        """Return x times `weight`, the packed linear layer that `LoraBlock.linears` names."""
        if self.is_prompt is None:
            y = self._ops.linear(x, weight)
        else:
            y = self._ops.linear_by_kind(x, weight, self.is_prompt)
        if self._slots is None or self.rows is None:
            return y
        return self._ops.lora(x, y, self._slots, self.numbers[name], self.rows)


@dataclass(frozen=True, slots=True)
class LayerStep(Generic[Tensor]):
    """The inputs and the memory of one layer in a step.

    - `linear`: computes the linear layers that LoRA adapters may change.
    - `cache`: the KV cache that the layer reads; None for a layer without attention.
    - `state`: the recurrent state of the layer; None for a layer without one.
    - `rope`: the RoPE table of the model.
    - `query_scales`: the factor on the queries at each position, [positions]; None: 1.
    - `rotation`: the rotation by three positions per token; None for one position per token.
    """

    ops: Ops[Tensor]
    inputs: StepInputs[Tensor]
    linear: LoraLinears[Tensor]
    cache: LayerCache[Tensor] | None
    state: LayerState[Tensor] | None
    rope: Tensor
    query_scales: Tensor | None
    rotation: Rotation[Tensor] | None
