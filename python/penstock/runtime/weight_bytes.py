"""The bytes of the packed weights of a decoder on a CPU."""

from __future__ import annotations

import math

from penstock.config import EngineSettings
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import gguf_names, hf_names
from penstock.models.hub.folder_files import weight_names
from penstock.models.hub.model_files import ModelFiles, gguf_parts


def weight_bytes(files: ModelFiles, spec: DecoderSpec, settings: EngineSettings) -> int:
    """Return the bytes of the packed weights on a CPU: 4 bytes per weight for dtype f32, else the
    size of the files."""
    if settings.dtype == "f32":
        names = gguf_names(spec) if files.kind == "gguf" else hf_names(spec)
        shapes = expected_shapes(names, spec)
        return 4 * sum(map(math.prod, shapes.values()))
    return file_bytes(files)


def file_bytes(files: ModelFiles) -> int:
    """Return the bytes of the files that contain weights. A folder may contain other files too."""
    if files.kind == "gguf":
        parts = gguf_parts(files.path)
    else:
        parts = [files.path / name for name in weight_names(files.path)]
    return sum(part.stat().st_size for part in parts)
