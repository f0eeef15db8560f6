"""Encodes media with a tower on a CPU, as the engine does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.kernels.native import NativeOps, Pool
from penstock.models.media.prepared import PreparedMedia
from penstock.models.towers import piece_budget
from penstock.models.towers.piece_budget import MOST_OPERATIONS, PieceBudget
from penstock.models.towers.tower import EncodedMedia, MediaSpec
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder

M = TypeVar("M", bound=torch.nn.Module)


def random_weights(model: M, seed: int = 5) -> M:
    """Give a transformers model random weights of a size at which all its parts matter."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (1.0 if is_norm else 0.0))
    return model.eval()


def save_tower(folder: Path, model: torch.nn.Module, prefix: str) -> None:
    """Save the weights of `model` as a folder's safetensors file, each name after `prefix`."""
    tensors = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    save_file(
        {name: value.contiguous() for name, value in tensors.items()},
        folder / "model.safetensors",
    )


def encode(spec: MediaSpec, folder: Path, media: PreparedMedia) -> EncodedMedia[Any]:
    """Return the embeddings of `media` by the first tower of `spec`, with weights in float32."""
    return encode_with(spec, SafetensorsFolder(folder), media)


def encode_with(spec: MediaSpec, checkpoint: Checkpoint, media: PreparedMedia) -> EncodedMedia[Any]:
    """Return the embeddings of `media` by the tower that takes it, with weights in float32."""
    return _encode(spec, checkpoint, media, [MOST_OPERATIONS])[0]


def check_pieces(spec: MediaSpec, folder: Path, media: PreparedMedia) -> None:
    """Check that a tower obeys the size of the next piece, and that its rows do not depend on
    it."""
    checkpoint = SafetensorsFolder(folder)
    whole, few = _encode(spec, checkpoint, media, [MOST_OPERATIONS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_budget, "ROW_UNIT", 3)  # the items of tests have few rows
        cut, many = _encode(spec, checkpoint, media, [1, 1e5, 1, 1e6, 3e6])
    assert many > few
    for one, other in zip((whole.rows, *whole.deep), (cut.rows, *cut.deep), strict=True):
        np.testing.assert_array_equal(one, other)


def _encode(
    spec: MediaSpec, checkpoint: Checkpoint, media: PreparedMedia, sizes: Sequence[float]
) -> tuple[EncodedMedia[Any], int]:
    """Encode in pieces of `sizes` operations in turn. Return the embeddings and the number of
    pieces."""
    ops, budget = NativeOps.eager(Pool(2)), PieceBudget()
    tower = next(tower for tower in spec.towers if media.kind in tower.kinds)
    pieces = tower.open(checkpoint, "f32").build(ops).encode(ops, media, budget)
    for number in itertools.count():
        budget.operations = sizes[number % len(sizes)]
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, number
    raise AssertionError("the count has no end")
