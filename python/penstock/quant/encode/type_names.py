"""The GGML types that can be written, and the spellings of their names."""

from __future__ import annotations

from typing import Final

FLOATS: Final = ("F32", "F16", "BF16")
SMALL_BLOCKS: Final = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
K_QUANTS: Final = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
ENCODED: Final = FLOATS + SMALL_BLOCKS + K_QUANTS
"""The types that `encode` writes. Blocks of SMALL_BLOCKS have 32 columns, those of K_QUANTS 256."""


def squeezed(name: str) -> str:
    """Return the form of a type's name in which spellings are compared: "q4_k", "Q4-K" and "q4k"
    are equal."""
    return name.upper().replace("_", "").replace("-", "")


_BY_SPELLING: Final = {squeezed(name): name for name in ENCODED}


def parse_type(text: str) -> str | None:
    """Return GGML's name of the type that `text` means, or None: "q4k" -> "Q4_K"."""
    return _BY_SPELLING.get(squeezed(text))
