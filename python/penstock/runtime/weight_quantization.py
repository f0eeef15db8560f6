"""What a start rounds the float weights of a model to, as `quantize` asks."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.quant.quantize import Bits

_BITS: Final[dict[str | None, Bits]] = {"int4": 4, "int8": 8}


def integer_bits(settings: EngineSettings) -> Bits | None:
    """Of the integers that weights become as they are read; None where they stay, or become 8-bit
    floats as they are packed. Raises ModelError where nothing is to be rounded at all."""
    if settings.quantize is not None and settings.dtype == "f32":
        raise ModelError(f"quantize is {settings.quantize}; dtype must be auto then, not f32")
    return _BITS.get(settings.quantize)


def refuse_on_cpu(settings: EngineSettings) -> None:
    """Raise ModelError where a CPU is asked for 8-bit floats."""
    if settings.quantize == "fp8":
        raise ModelError(
            "quantize is fp8, which needs a GPU; a CPU multiplies integers: int8 or int4"
        )


def refuse_for_vectors(settings: EngineSettings) -> None:
    """Raise ModelError where weights are to be rounded of a model that embeds or reranks."""
    if settings.quantize is not None:
        raise ModelError(
            f"quantize is {settings.quantize}; weights of models that embed or rerank are served "
            "as they are stored"
        )
