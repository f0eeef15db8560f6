"""Checkpoints of real size whose files are sparse: data that is not read takes no memory and no
disk."""

from __future__ import annotations

import json
import math
from pathlib import Path

from bench.device.layered_models import LayeredShape
from bench.device.model_shapes import Shape, config_of
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import hf_names, spec_of_folder


def parameters(spec: DecoderSpec) -> int:
    """Return the number of elements of all required tensors."""
    return sum(map(math.prod, expected_shapes(hf_names(spec), spec).values()))


def write_config(shape: Shape | LayeredShape, folder: Path) -> DecoderSpec:
    """Write `config.json`, and return its spec."""
    folder.mkdir(parents=True)
    config = config_of(shape) if isinstance(shape, Shape) else shape.config
    (folder / "config.json").write_text(json.dumps(config))
    return spec_of_folder(folder)


def write_sparse_checkpoint(shape: Shape | LayeredShape, folder: Path) -> Path:
    """Write a bfloat16 Hugging Face folder: a header, and a hole in place of the weights."""
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
