"""The GGML types that can be written, and the spellings of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.config.weight_types import K_QUANTS, SMALL_BLOCKS, squeezed

__all__ = ["ENCODED", "FLOATS", "K_QUANTS", "SMALL_BLOCKS", "parse_type", "squeezed"]

FLOATS: Final = ("F32", "F16", "BF16")
ENCODED: Final = FLOATS + SMALL_BLOCKS + K_QUANTS
"""The types that `encode` writes. Blocks of SMALL_BLOCKS have 32 columns, those of K_QUANTS 256."""


def parse_type(text: str, types: Iterable[str] = ENCODED) -> str | None:
    """Return the name of `types` that `text` means, or None: "q4k" -> "Q4_K"."""
    return next((name for name in types if squeezed(name) == squeezed(text)), None)
