"""The GGML types that can be written, and the spellings of their names."""

from __future__ import annotations

from typing import Final

from penstock.config.weight_types import K_QUANTS, SMALL_BLOCKS, squeezed

__all__ = ["ENCODED", "FLOATS", "K_QUANTS", "SMALL_BLOCKS", "parse_type", "squeezed"]

FLOATS: Final = ("F32", "F16", "BF16")
ENCODED: Final = FLOATS + SMALL_BLOCKS + K_QUANTS
"""The types that `encode` writes. Blocks of SMALL_BLOCKS have 32 columns, those of K_QUANTS 256."""


_BY_SPELLING: Final = {squeezed(name): name for name in ENCODED}


def parse_type(text: str) -> str | None:
    """Return GGML's name of the type that `text` means, or None: "q4k" -> "Q4_K"."""
    return _BY_SPELLING.get(squeezed(text))
