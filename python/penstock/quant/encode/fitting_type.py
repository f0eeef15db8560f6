"""The types of matrices whose columns make no whole blocks."""

from __future__ import annotations

from typing import Final

from penstock.quant.encode.type_names import ENCODED, FLOATS

_OF_SMALL_BLOCKS: Final = {
    "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}  # fmt: skip


def fitting_type(type_name: str, columns: int) -> str:
    """Return `type_name`, or the type that replaces it if `columns` make no whole blocks: one with
    blocks of 32, or else F16. The replacements are those of llama.cpp."""
    assert type_name in ENCODED
    if type_name in _OF_SMALL_BLOCKS and columns % 256:
        type_name = _OF_SMALL_BLOCKS[type_name]
    return "F16" if type_name not in FLOATS and columns % 32 else type_name
