"""Maps the names of a checkpoint's matrices to those of a GGUF file, which importance matrices
use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.column_squares import ColumnSquares
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families import registry
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.importance_file import importance_rows

_ROLES: Final = (
    *("q", "k", "v", "output", "gate", "up", "down"),
    *("expert_gate", "expert_up", "expert_down"),
    *("shared_gate", "shared_up", "shared_down"),
)


def matrix_pairs(names: TensorNames, spec: DecoderSpec) -> Iterator[tuple[str, str]]:
    """Yield (name in the checkpoint, name in a GGUF file) of the matrices of all layers. `names`:
    those of the checkpoint. One name may be in several pairs, because one of the two files may
    store several projections as one tensor. {} is the number of an expert."""
    existing = expected_shapes(names, spec)
    for own, other in _possible_pairs(names, spec):
        if own.format(0) in existing:
            yield own, other


def _possible_pairs(names: TensorNames, spec: DecoderSpec) -> Iterator[tuple[str, str]]:
    gguf = registry.gguf_twin(names, spec)
    for index, layer in enumerate(spec.layers):
        own, other = names.layer.format(index), gguf.layer.format(index)
        for role in _ROLES:
            pair = getattr(names, role), getattr(gguf, role)
            if all(pair):
                yield f"{own}{pair[0]}.weight", f"{other}{pair[1]}.weight"
        if layer.mixer is not None:
            for role in layer.mixer.linears:
                if role in names.mixer and role in gguf.mixer:
                    yield own + names.mixer[role], other + gguf.mixer[role]


def with_gguf_names(
    squares: Mapping[str, ColumnSquares], names: TensorNames, spec: DecoderSpec
) -> dict[str, ColumnSquares]:
    """Return sums that were collected by the names of the checkpoint by the names of a GGUF
    file."""
    pairs = matrix_pairs(names, spec)
    return {other: squares[own] for own, other in pairs if own in squares}


def importance_by_tensor(
    matrix: ImportanceMatrix, names: TensorNames, spec: DecoderSpec
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the importance [E, C] of each tensor of a checkpoint that `matrix` has sums for.
    Raises ModelError if `matrix` is of a model with other sizes or other names."""
    shapes = expected_shapes(names, spec)
    found: dict[str, npt.NDArray[np.float32]] = {}
    for own, other in matrix_pairs(names, spec):
        experts = _expert_tensors(own, shapes) if "{}" in own else [own]
        *stacked, _, columns = shapes[experts[0]]
        count = len(experts) * math.prod(stacked)
        rows = importance_rows(matrix, other, count, columns)
        if rows is not None:
            found |= zip(experts, np.split(rows, len(experts)), strict=True)
    if matrix.squares and not found:
        raise ModelError(
            "importance matrix: none of its names is a matrix of this model; the first is"
            f" {min(matrix.squares)}"
        )
    return found


def _expert_tensors(name: str, shapes: Mapping[str, Shape]) -> list[str]:
    """Return the names of the tensors of all experts. {} in `name` is the number of an expert."""
    return list(itertools.takewhile(shapes.__contains__, map(name.format, itertools.count())))
