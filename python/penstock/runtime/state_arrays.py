"""The arrays of recurrent states: their shapes, and the states that are made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.kernels.recurrent_state import (
    ConvState,
    LayerState,
    MatrixState,
    StateShape,
    conv_ring,
    matrix_ring,
)
from penstock.runtime.state_memory import StateMemory

Tensor = TypeVar("Tensor")
Shape = tuple[int, ...]


def array_shapes(layer: StateShape, memory: StateMemory) -> list[Shape]:
    """Return the shapes of the arrays of one layer: recent and saved of `ConvState`, then matrix,
    keys, values and decays of `MatrixState`, as far as the layer has them."""
    rows = memory.rows
    shapes: list[Shape] = []
    if layer.taps:
        ring = conv_ring(layer.taps, memory.draft_tokens)
        shapes.append((rows, ring, layer.channels))
        shapes.append((memory.snapshots, layer.taps - 1, layer.channels))
    if layer.heads:
        ring = matrix_ring(memory.draft_tokens)
        shapes += [
            (rows + memory.snapshots, layer.heads, layer.key_dim, layer.value_dim),
            (rows, ring, layer.groups * layer.key_dim),
            (rows, ring, layer.heads * layer.value_dim),
            (rows, ring, layer.heads),
        ]
    return shapes


def layer_states(
    layers: Sequence[StateShape | None], arrays: Iterator[Tensor]
) -> list[LayerState[Tensor] | None]:
    """Return the state of each layer, None for a layer without one. `arrays`: those of all layers
    in the order of `array_shapes`."""
    return [None if layer is None else _layer_state(layer, arrays) for layer in layers]


def _layer_state(layer: StateShape, arrays: Iterator[Tensor]) -> LayerState[Tensor]:
    conv = ConvState(next(arrays), next(arrays)) if layer.taps else None
    matrix = (
        MatrixState(next(arrays), next(arrays), next(arrays), next(arrays)) if layer.heads else None
    )
    return LayerState(conv, matrix)
