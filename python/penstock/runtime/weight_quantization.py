"""Checks the `quantization` setting, which rounds float weights while a model is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.config.weight_types import (
    AS_STORED,
    KNOWN,
    ON_GPU,
    WeightForm,
    parse_weight_type,
)
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.importance_file import read_importance


def with_known_quantization(settings: EngineSettings) -> EngineSettings:
    """Return settings whose `quantization` is the name of a type, or None: "INT4" -> "int4".
    Raises ModelError that lists the types."""
    if settings.quantization is None:
        return settings
    form = parse_weight_type(settings.quantization)
    if form is None:
        raise ModelError(
            f"quantization is {settings.quantization}; known types are {', '.join(KNOWN)}"
        )
    return msgspec.structs.replace(settings, quantization=None if form == AS_STORED else form)


def weight_form(settings: EngineSettings) -> WeightForm | None:
    """Return the type to which float weights are quantized as they are read. Return None if they
    are not, or are rounded to 8-bit floats when packed. Raises ModelError for dtype f32."""
    form = with_known_quantization(settings).quantization
    if form is not None and settings.dtype == "f32":
        raise ModelError(f"quantization is {form}; it needs dtype auto, not f32")
    return None if form in ON_GPU else form


def fingerprint_of(files: str, settings: EngineSettings, arithmetic: str) -> str:
    """Return the fingerprint of loaded weights. `files`: that of the model's files. `arithmetic`:
    the name of the arithmetic of products."""
    return "-".join(part for part in (files, settings.quantization, arithmetic) if part)


def importance_of(settings: EngineSettings) -> ImportanceMatrix | None:
    """Read the importance matrix that the settings name, None if they name none. Raises
    ModelError."""
    if settings.imatrix is None:
        return None
    if settings.quantization is None:
        raise ModelError("imatrix is set, which needs quantization to be set too")
    return read_importance(Path(settings.imatrix))


def refuse_on_cpu(settings: EngineSettings) -> None:
    """Raise ModelError if `quantization` is fp8, which a CPU does not support."""
    if settings.quantization == "fp8":
        raise ModelError("quantization is fp8, which needs a GPU; on a CPU it must be int8 or int4")


def refuse_for_vectors(settings: EngineSettings) -> None:
    """Raise ModelError if `quantization` is set, which embedding models and rerankers do not
    support."""
    if settings.quantization is not None:
        raise ModelError(
            f"quantization is {settings.quantization}; embedding models and rerankers are served"
            " as "
            "stored, so it must not be set"
        )
