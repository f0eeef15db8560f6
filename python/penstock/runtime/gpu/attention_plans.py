"""The work plans of decode attention, computed once per step for all layers with the same shape of
attention."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from penstock.kernels.kv_splits import FEW_ROWS, FEW_ROWS_SPLIT, smallest_split
from penstock.kernels.latent_ops import LatentSizes
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.gpu.attention_shapes import AttentionShape, Heads, attention_shapes

Plans: TypeAlias = dict[tuple[Heads, int], Any]
"""An `AttentionWork` for each pair of head sizes and window."""


class AttentionPlans:
    """The work plans of decode attention for the shapes of attention of a model.

    `max_rows`: most rows of a step.
    `max_model_len`: most tokens of a sequence.
    `few_rows`: steps of up to this number of rows split a context into smaller parts, to occupy the
        whole GPU.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        device: str,
        max_rows: int,
        max_model_len: int,
        block_size: int,
        few_rows: int,
    ) -> None:
        # Imported here because only Triton needs it, never a CPU.
        from penstock.kernels.triton.paged_attention import decode_attention
        from penstock.kernels.triton.paged_attention import decode_work as attention_work

        self._allocate = attention_work.AttentionWork.allocate
        self._most_units = attention_work.most_units
        self._tokens_of = decode_attention.decode_tokens
        self._shapes = [(_tiled(shape, device), shape.window) for shape in attention_shapes(spec)]
        self._device = device
        self._block_size = block_size
        self._few_rows = min(few_rows, max_rows)
        self._kept = self._keep(max_rows, max_model_len, smallest_split())
        self._few: Plans = {}
        if self._few_rows:
            self._few = self._keep(self._few_rows, max_model_len, FEW_ROWS_SPLIT)

    def _keep(self, rows: int, max_model_len: int, chunk: int) -> Plans:
        """Allocate the memory of work plans for steps of up to `rows` rows with one token each."""
        units = self._most_units(rows, max_model_len, chunk)
        return {
            (heads, window): self._allocate(rows, units, heads, window, self._device, split=chunk)
            for heads, window in self._shapes
        }

    @property
    def size_bytes(self) -> int:
        works = [*self._kept.values(), *self._few.values()]
        return sum(work.parts.nbytes + work.stats.nbytes for work in works)

    def prepare(self, inputs: StepInputs[torch.Tensor], one_token: bool) -> Plans:
        """Plan the attention of a step. `one_token`: each row has one token, and the inputs are at
        the same addresses as in the last such step."""
        works = self.of_decodes(inputs) if one_token else self._fresh(inputs)
        for work in works.values():
            work.plan(inputs)
        return works

    def of_decodes(self, inputs: StepInputs[torch.Tensor]) -> Plans:
        """Return the memory of the plans for a step whose rows have one token each."""
        return self._few if len(inputs.context_lens) <= self._few_rows else self._kept

    def _fresh(self, inputs: StepInputs[torch.Tensor]) -> Plans:
        """Allocate the memory of work plans for a step with prefill chunks, sized by its longest
        context."""
        rows, width = inputs.block_tables.shape
        one_token = len(inputs.tokens) == rows
        units = self._most_units(rows, width * self._block_size)
        return {
            (heads, window): self._allocate(
                rows, units, heads, window, self._device, 1 if one_token else self._tokens_of(heads)
            )
            for heads, window in self._shapes
        }


def attention_plans(
    spec: DecoderSpec, ops: TorchOps, max_rows: int, max_model_len: int, block_size: int
) -> AttentionPlans | None:
    """Return the work plans of a model with these sizes, or None if the kernels of `ops` need
    none."""
    if ops.registry["attention"].name not in ("cuda", "triton"):
        return None
    few_rows = FEW_ROWS if ops.splits_by_rows else 0
    return AttentionPlans(spec, ops.device, max_rows, max_model_len, block_size, few_rows)


def _tiled(shape: AttentionShape, device: str) -> Heads:
    """Return the heads for which kernels need a work plan."""
    if not isinstance(shape.heads, LatentSizes):
        return shape.heads
    from penstock.kernels.triton.paged_attention.latent_attention import tiled_heads

    return tiled_heads(shape.heads, device)
