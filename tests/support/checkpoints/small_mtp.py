"""Small random models on disk with a head that predicts further tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import hf_names, spec_of_folder
from tests.support.checkpoints.small_hybrid import small_tensor, write_small_hybrid

_LAST = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


def write_small_mtp(folder: Path, seed: int = 0) -> Path:
    """Write a Qwen3.5 of float32 weights. The head is random, so its drafts are mostly wrong."""
    write_small_hybrid(folder, seed)
    return add_mtp_head(folder, seed)


def write_right_mtp(folder: Path) -> Path:
    """Write a Qwen3.5 whose head is right; see `correct_mtp_head`."""
    return correct_mtp_head(write_small_mtp(folder))


def add_mtp_head(folder: Path, seed: int = 0) -> Path:
    """Add a random head to the model in `folder`, whose family may have one."""
    spec = spec_of_folder(folder)
    names = hf_names(spec)
    mtp = names.mtp
    assert mtp is not None
    root = mtp.root or names.layer.format(len(spec.layers))
    named = replace(
        names, layer=f"{root}{mtp.layer}", final_norm=f"{root}{mtp.norm.removesuffix('.weight')}"
    )
    shapes = expected_shapes(named, mtp_decoder(spec))
    shapes = {name: shape for name, shape in shapes.items() if name.startswith(root)}
    width = spec.hidden_size
    shapes[f"{root}{mtp.fc}"] = (width, 2 * width)
    shapes[f"{root}{mtp.embedding_norm}"] = shapes[f"{root}{mtp.hidden_norm}"] = (width,)
    random = np.random.default_rng(seed + 1)
    further = {name: small_tensor(name, shape, random) for name, shape in shapes.items()}
    path = folder / "model.safetensors"
    save_file(load_file(path) | further, path)
    return folder


def correct_mtp_head(folder: Path) -> Path:
    """Change the model in `folder` so that its next token depends only on the last one, and its
    head knows it. The layers add nothing to the embedding, and the head reads only the embedding.
    """
    spec = spec_of_folder(folder)
    names = hf_names(spec)
    mtp = names.mtp
    assert mtp is not None
    root = mtp.root or names.layer.format(len(spec.layers))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, values in tensors.items():
        if name.endswith(_LAST):
            values[...] = 0
    width = spec.hidden_size
    tensors[f"{root}{mtp.fc}"] = np.eye(width, 2 * width, dtype=np.float32)
    # Qwen adds 1 to the weights of a norm.
    one = 0 if mtp.root else 1
    tensors[f"{root}{mtp.embedding_norm}"] = np.full(width, one, np.float32)
    tensors[f"{root}{mtp.norm}"] = tensors[f"{names.final_norm}.weight"].copy()
    save_file(tensors, path)
    return folder
