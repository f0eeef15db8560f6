"""Encodes media with a tower on a CPU, as the engine does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file

from penstock.kernels.native import NativeOps, Pool
from penstock.models.media.prepared import PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
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
    ops = NativeOps.eager(Pool(2))
    tower = next(tower for tower in spec.towers if media.kind in tower.kinds)
    pieces = tower.open(checkpoint, "f32").build(ops).encode(ops, media, PieceBudget())
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            encoded: EncodedMedia[Any] = done.value
            return encoded
