"""The `quantize` setting: rounding of float weights at load."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.quant.quantize import Bits

_BITS: Final[dict[str | None, Bits]] = {"int4": 4, "int8": 8}


def integer_bits(settings: EngineSettings) -> Bits | None:
    """Return the bits of the integers that weights are rounded to as they are read, or None if they
    are not rounded or become 8-bit floats when packed. Raises ModelError for dtype f32."""
    if settings.quantization is not None and settings.dtype == "f32":
        raise ModelError(f"quantization is {settings.quantization}; it needs dtype auto, not f32")
    return _BITS.get(settings.quantization)


def refuse_on_cpu(settings: EngineSettings) -> None:
    """Raise ModelError if `quantize` is fp8, which a CPU does not support."""
    if settings.quantization == "fp8":
        raise ModelError("quantization is fp8, which needs a GPU; on a CPU it must be int8 or int4")


def refuse_for_vectors(settings: EngineSettings) -> None:
    """Raise ModelError if an embedding model or a reranker is to be quantized."""
    if settings.quantization is not None:
        raise ModelError(
            f"quantization is {settings.quantization}; embedding models and rerankers are served"
            " as "
            "stored, so it must not be set"
        )
