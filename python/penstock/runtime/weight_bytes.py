"""The bytes of the packed weights of a decoder on a CPU."""

from __future__ import annotations

import math

from penstock.config import EngineSettings
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.families.registry import gguf_names, hf_names
from penstock.models.hub.folder_files import weight_names
from penstock.models.hub.model_files import ModelFiles, gguf_parts
from penstock.models.loader.model_loader import LoadedModel


def weight_bytes(files: ModelFiles, spec: DecoderSpec, settings: EngineSettings) -> int:
    """Return the bytes of the weights on a CPU before they are packed: 4 bytes per weight for dtype
    f32, else the size of the files."""
    if settings.dtype == "f32":
        names = gguf_names(spec) if files.kind == "gguf" else hf_names(spec)
        shapes = expected_shapes(names, spec)
        return 4 * sum(map(math.prod, shapes.values()))
    return file_bytes(files)


def packed_bytes(files: ModelFiles, model: LoadedModel, settings: EngineSettings) -> int:
    """Return the bytes that the weights of `model` take at most on a CPU."""
    plain = weight_bytes(files, model.spec, settings)
    return plain + model.extra_bytes + int16_bytes(model.weights)


def int16_bytes(weights: object) -> int:
    """Return the bytes by which 16-bit floats of a decoder grow on CPUs that pack them as int16."""
    return weights.int16_bytes() if isinstance(weights, DecoderWeights) else 0


def file_bytes(files: ModelFiles) -> int:
    """Return the bytes of the files that contain weights. A folder may contain other files too."""
    if files.kind == "gguf":
        parts = gguf_parts(files.path)
    else:
        parts = [files.path / name for name in weight_names(files.path)]
    return sum(part.stat().st_size for part in parts)
