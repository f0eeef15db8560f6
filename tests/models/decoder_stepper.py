"""Drives a Decoder over the reference ops like a runtime: paged cache, chunks, sampled rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from penstock.kernels.ops.lora import ReferenceSlots
from penstock.kernels.recurrent_state import (
    STATE_TILE,
    ConvState,
    LayerState,
    MatrixState,
    StateRows,
    StateShape,
    conv_ring,
    matrix_ring,
)
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import AdapterRows, LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model

BLOCK_TOKENS = 16


def load_decoder(
    path: Path, dtype: Literal["auto", "f32"] = "auto"
) -> tuple[Decoder[torch.Tensor], ReferenceOps]:
    """Load a folder or a .gguf file and pack it for the reference ops."""
    files = ModelFiles("test", "folder" if path.is_dir() else "gguf", path)
    model = load_model(files, dtype)
    ops = ReferenceOps()
    return Decoder(model.spec, model.weights, ops, max_model_len=256), ops


@dataclass
class Stepper:
    """Sequences of up to `max_tokens` tokens, each with its own scattered blocks. `slots`: all
    sequences use the adapter in slot 0."""

    decoder: Decoder[torch.Tensor]
    ops: ReferenceOps
    sequences: int = 1
    max_tokens: int = 64
    slots: ReferenceSlots | None = None
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec = self.decoder.spec
        per_sequence = -(-self.max_tokens // BLOCK_TOKENS)
        blocks = self.sequences * per_sequence
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(0))
        self.tables = order.to(torch.int32).reshape(self.sequences, per_sequence)
        self.lengths = [0] * self.sequences
        self.caches = [
            None
            if size is None
            else LayerCache(
                self._undefined(blocks, size.kv_heads, size.key_dim, BLOCK_TOKENS),
                self._undefined(blocks, size.kv_heads, BLOCK_TOKENS, size.value_dim),
            )
            for size in spec.caches
        ]
        self.states = [None if shape is None else self._state(shape) for shape in spec.states]

    def step(self, chunks: dict[int, list[int]], all_rows: bool = False) -> torch.Tensor:
        """Compute a chunk of some sequences. Return the logits of the last token of each chunk, in
        order, or of all tokens."""
        tokens, positions, slots, starts, contexts, samples = [], [], [], [0], [], []
        for row, chunk in chunks.items():
            first = self.lengths[row]
            for position in range(first, first + len(chunk)):
                block = int(self.tables[row, position // BLOCK_TOKENS])
                slots.append(block * BLOCK_TOKENS + position % BLOCK_TOKENS)
                positions.append(position)
            tokens += chunk
            self.lengths[row] += len(chunk)
            starts.append(len(tokens))
            contexts.append(self.lengths[row])
            samples.append(len(tokens) - 1)
        rows = list(range(len(tokens))) if all_rows else samples
        inputs = StepInputs(
            *(_int32(x) for x in (tokens, positions, slots, starts, contexts)),
            block_tables=self.tables[list(chunks)],
            sample_rows=_int32(rows),
            adapters=self._adapted(len(tokens)),
            sampled_adapters=self._adapted(len(rows)),
            states=self._state_rows(chunks) if self.decoder.spec.is_recurrent else None,
        )
        return self.decoder.forward(self.ops, inputs, self.caches, self.slots, self.states)

    def _state(self, shape: StateShape) -> LayerState[torch.Tensor]:
        """Return the undefined state of a layer, with one snapshot slot."""
        rows, tile = self.sequences, matrix_ring(0)
        conv = matrix = None
        if shape.taps:
            conv = ConvState(
                self._undefined(rows, conv_ring(shape.taps, 0), shape.channels),
                self._undefined(1, shape.taps - 1, shape.channels),
            )
        if shape.heads:
            matrix = MatrixState(
                self._undefined(rows + 1, shape.heads, shape.key_dim, shape.value_dim),
                self._undefined(rows, tile, shape.groups * shape.key_dim),
                self._undefined(rows, tile, shape.heads * shape.value_dim),
                self._undefined(rows, tile, shape.heads),
            )
        return LayerState(conv, matrix)

    def _state_rows(self, chunks: dict[int, list[int]]) -> StateRows[torch.Tensor]:
        """Return the states of a step, for chunks that are already counted in `lengths`."""
        lengths = [len(chunk) for chunk in chunks.values()]
        starts = [self.lengths[row] - len(chunk) for row, chunk in chunks.items()]
        count = len(chunks)
        return StateRows(
            source=_int32(
                [row if start else -1 for row, start in zip(chunks, starts, strict=True)]
            ),
            base=_int32([start // STATE_TILE * STATE_TILE for start in starts]),
            target=_int32(list(chunks)),
            keep=_int32(lengths),
            save=_int32([-1] * count),
            save_after=_int32([0] * count),
        )

    def _adapted(self, count: int) -> AdapterRows[torch.Tensor] | None:
        if self.slots is None:
            return None
        return AdapterRows(_int32([0]), _int32(list(range(count))), _int32([0, count]))

    def _undefined(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=self.ops.dtype)


def _int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
