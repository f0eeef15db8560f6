"""A small random Qwen3.5 on disk with a head that predicts further tokens."""

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
    """Write a folder of float32 weights. The head is random, so its drafts are mostly wrong."""
    write_small_hybrid(folder, seed)
    spec = spec_of_folder(folder)
    names = replace(hf_names(spec), layer="mtp.layers.0.", final_norm="mtp.norm")
    shapes = expected_shapes(names, mtp_decoder(spec))
    shapes = {name: shape for name, shape in shapes.items() if name.startswith("mtp.")}
    width = spec.hidden_size
    shapes["mtp.fc.weight"] = (width, 2 * width)
    shapes["mtp.pre_fc_norm_embedding.weight"] = shapes["mtp.pre_fc_norm_hidden.weight"] = (width,)
    random = np.random.default_rng(seed + 1)
    further = {name: small_tensor(name, shape, random) for name, shape in shapes.items()}
    path = folder / "model.safetensors"
    save_file(load_file(path) | further, path)
    return folder


def write_right_mtp(folder: Path) -> Path:
    """Write a folder whose next token depends only on the last one, with a head that knows it. The
    layers add nothing to the embedding, and the head reads only the embedding."""
    path = write_small_mtp(folder) / "model.safetensors"
    tensors = load_file(path)
    for name, values in tensors.items():
        if name.endswith(_LAST):
            values[...] = 0
    width = len(tensors["mtp.norm.weight"])
    tensors["mtp.fc.weight"] = np.eye(width, 2 * width, dtype=np.float32)
    tensors["mtp.pre_fc_norm_embedding.weight"] = np.zeros(width, np.float32)
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"].copy()
    save_file(tensors, path)
    return folder
