"""Checks the `quantization` setting, which rounds float weights while a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.quantize import Bits

_BITS: Final[dict[str | None, Bits]] = {"int4": 4, "int8": 8}


def integer_bits(settings: EngineSettings) -> Bits | None:
    """Return the bits of the integers to which float weights are rounded as they are read. Return
    None if they are not rounded, or are rounded to 8-bit floats when packed. Raises ModelError for
    dtype f32."""
    if settings.quantization is not None and settings.dtype == "f32":
        raise ModelError(f"quantization is {settings.quantization}; it needs dtype auto, not f32")
    return _BITS.get(settings.quantization)


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
    return ImportanceMatrix.read(Path(settings.imatrix))


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
