"""The types into which weights can be quantized, and the spellings of their names."""

from __future__ import annotations

from typing import Final, TypeAlias

WeightForm: TypeAlias = str
"""The name of a type that `parse_weight_type` returned and a CPU supports."""

INTEGERS: Final = ("int8", "int4")
ON_GPU: Final = ("fp8",)
SMALL_BLOCKS: Final = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
"""Types of GGML with blocks of 32 columns."""
K_QUANTS: Final = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
"""Types of GGML with blocks of 256 columns."""

WIDE: Final[WeightForm] = "int8"
"""The type of embeddings and language-model heads."""
AS_STORED: Final = "none"
"""The name of the weights as they are in the file."""
KNOWN: Final = (*INTEGERS, *ON_GPU, *SMALL_BLOCKS, *K_QUANTS, AS_STORED)

_NUMBERS: Final = {
    "2": "Q2_K",
    "3": "Q3_K",
    "4": "Q4_K",
    "5": "Q5_K",
    "6": "Q6_K",
    "8": "Q8_0",
}


def squeezed(name: str) -> str:
    """Return the form of a type's name in which spellings are compared: "q4_k", "Q4-K" and "q4k"
    are equal."""
    return name.upper().replace("_", "").replace("-", "")


_BY_SPELLING: Final = {
    **{squeezed(name): name for name in KNOWN},
    **_NUMBERS,
    **{squeezed(name): "fp8" for name in ("float8", "f8e4m3", "fp8e4m3")},
}


def parse_weight_type(text: str) -> str | None:
    """Return the name of the type that `text` means, None if there is no such type: "q4k" ->
    "Q4_K", "INT4" -> "int4", "8" -> "Q8_0"."""
    return _BY_SPELLING.get(squeezed(text))
