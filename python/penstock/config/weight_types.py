"""The types into which weights can be quantized while they are read, and the spellings of their
names."""

from __future__ import annotations

from typing import Final, TypeAlias

from penstock.base.errors import InvalidRequest

WeightForm: TypeAlias = str
"""The name of a type that `parse_weight_type` returned and a CPU supports."""

WIDE: Final[WeightForm] = "int8"
"""The type of embeddings and language-model heads."""

INTEGERS: Final = ("int8", "int4")
ON_GPU: Final = ("fp8",)
AS_STORED: Final = "none"
"""The name of the weights as they are in the file."""

KNOWN: Final = (*INTEGERS, *ON_GPU, AS_STORED)

_ALSO_KNOWN: Final = {"float8": "fp8", "f8e4m3": "fp8", "fp8e4m3": "fp8", "none": AS_STORED}


def parse_weight_type(text: str) -> str | None:
    """Return the name of the type that `text` means, None if there is no such type: "INT4" ->
    "int4"."""
    squeezed = text.lower().replace("_", "").replace("-", "")
    if squeezed in (*INTEGERS, *ON_GPU):
        return squeezed
    return _ALSO_KNOWN.get(squeezed)


def requested_type(text: str, field: str) -> str | None:
    """Return the type that a request names, None for the weights as they are in the file. `field`:
    the request's field, for the error. Raises InvalidRequest that lists the types."""
    parsed = parse_weight_type(text)
    if parsed is None:
        known = ", ".join(KNOWN)
        raise InvalidRequest(f"there is no such type of weights; known are {known}", field=field)
    return None if parsed == AS_STORED else parsed
