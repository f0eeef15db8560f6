"""Checkpoints of true shape whose files are holes: what is not read takes no memory and no disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

from bench.device.model_shapes import Shape, config_of
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.weights import expected_shapes
from penstock.models.families.registry import hf_names, spec_of_folder


def parameters(spec: DecoderSpec) -> int:
    """Elements of all tensors that a checkpoint must have."""
    return sum(map(math.prod, expected_shapes(hf_names(spec), spec).values()))


def write_config(shape: Shape, folder: Path) -> DecoderSpec:
    """`config.json`, and what is read from it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    return spec_of_folder(folder)


def write_sparse_checkpoint(shape: Shape, folder: Path) -> Path:
    """A folder in the Hugging Face form, bfloat16: a header, and a hole for the weights."""
    spec = write_config(shape, folder)
    header, end = {}, 0
    for name, extents in expected_shapes(hf_names(spec), spec).items():
        begin, end = end, end + 2 * math.prod(extents)
        header[name] = {"dtype": "BF16", "shape": extents, "data_offsets": [begin, end]}
    written = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        file.truncate(8 + len(written) + end)
    return folder
