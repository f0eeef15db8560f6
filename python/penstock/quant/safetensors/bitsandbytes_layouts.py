"""The layouts of bitsandbytes: 4-bit indices of a table of floats (NF4, FP4), and 8-bit integers.

No kernel multiplies with tables of floats, so that 4-bit weights become floats of the type that the
file names, with the values that bitsandbytes computes with.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, FloatName
from penstock.quant.safetensors.layout import (
    Arrays,
    Header,
    Layout,
    Numbers,
    Part,
    Shape,
    Size,
    float_sample,
    integer_sample,
    rounded,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_DTYPES: dict[str, FloatName] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
MAX_STATE_BYTES = 1 << 12


class _State(msgspec.Struct):
    """The JSON text in the tensor `quant_state`."""

    shape: list[int]
    blocksize: int
    dtype: str
    nested_blocksize: int | None = None
    nested_offset: float | None = None


def _state(texts: list[npt.NDArray[Any] | None]) -> _State:
    """Decode the state of a matrix. Raises ValueError if there is none, or an invalid one."""
    present = [text for text in texts if text is not None]
    if len(present) != 1 or present[0].size > MAX_STATE_BYTES:
        raise ValueError("needs one quant_state, of nf4 or fp4")
    try:
        state = msgspec.json.decode(present[0].tobytes(), type=_State)
    except msgspec.DecodeError as error:
        raise ValueError(f"quant_state: {error}") from None
    if len(state.shape) != 2 or min(state.shape) <= 0 or not 0 < state.blocksize <= 1 << 16:
        raise ValueError(f"quant_state: shape {state.shape}, blocksize {state.blocksize}")
    if state.dtype not in _DTYPES:
        raise ValueError(f"quant_state: dtype {state.dtype} is not supported")
    nested = state.nested_blocksize
    if nested is not None and not 0 < nested <= 1 << 16:
        raise ValueError(f"quant_state: nested_blocksize {nested}")
    if nested is not None and not np.isfinite(state.nested_offset or 0):
        raise ValueError("quant_state: nested_offset is not finite")
    return state


def _size_4bit(shape: Shape, grouping: Grouping, header: Header) -> Size:
    state = _state([header.peek(name) for name in _STATES])
    rows, columns = state.shape
    return Size(rows, columns, Grouping(4, state.blocksize), _DTYPES[state.dtype])


def _blocks(size: Size) -> int:
    return -(-size.rows * size.columns // size.group)


def _read_4bit(arrays: Arrays, size: Size) -> Dense:
    """Convert NF4 or FP4. The high nibble of a byte is the first of two indices; a scale belongs to
    consecutive numbers, also across rows. Nested scales are indices of a table of their own."""
    absmax = arrays["weight.absmax"]
    if absmax.dtype == np.uint8:
        absmax = _nested(arrays, _state([arrays.get(name) for name in _STATES]), absmax)
    table, stored = arrays["weight.quant_map"], arrays["weight"].reshape(-1)
    pairs = np.empty((256, 2), np.float32)
    pairs[:, 0], pairs[:, 1] = table[np.arange(256) >> 4], table[np.arange(256) & 15]
    count = size.rows * size.columns
    padded = np.zeros(_blocks(size) * size.group, np.float32)
    padded[:count] = pairs[stored].reshape(-1)[:count]
    padded.reshape(-1, size.group)[:] *= absmax[:, None]
    assert size.floats is not None
    return rounded(padded[:count].reshape(size.rows, size.columns), size.floats)


def _nested(arrays: Arrays, state: _State, codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    outer, table = arrays.get("weight.nested_absmax"), arrays.get("weight.nested_quant_map")
    if outer is None or table is None or state.nested_blocksize is None:
        raise ValueError(
            "its scales are nested, but tensors or keys of the outer scales are missing"
        )
    block = np.arange(codes.size) // state.nested_blocksize
    if block[-1] >= outer.size:
        raise ValueError(f"nested_absmax has {outer.size} scales, expected {block[-1] + 1}")
    scales: npt.NDArray[np.float32] = table[codes] * outer[block]
    scales += np.float32(state.nested_offset or 0)
    return scales


def _size_int8(shape: Shape, grouping: Grouping, header: Header) -> Size:
    return Size(shape[0], shape[1], Grouping(8, None))


def _read_int8(arrays: Arrays, size: Size) -> Numbers:
    """Convert 8-bit integers: w = q * SCB / 127, with the scale rounded to float32."""
    scale = (arrays["SCB"].astype(np.float64) / 127).astype(np.float32).reshape(-1, 1)
    q = arrays["weight"].view(np.uint8) ^ np.uint8(128)
    return Numbers(q, scale, np.full(scale.shape, 128, np.uint8))


def _sample_4bit(size: Size, float_types: set[str], symmetric: bool) -> Dense:
    assert size.floats is not None
    return float_sample(size, size.floats)


def _sample_int8(size: Size, float_types: set[str], symmetric: bool) -> Any:
    return integer_sample(size, float_types, True)


def _text(size: Size) -> tuple[Shape, ...]:
    return tuple((length,) for length in range(1, MAX_STATE_BYTES))


BITSANDBYTES_LAYOUTS: dict[LayoutName, Layout] = {
    "bnb_4bit": Layout(
        "bitsandbytes 4-bit",
        "weight",
        {
            "weight": Part(("U8",), lambda size: ((-(-size.rows * size.columns // 2), 1),)),
            "weight.absmax": Part(("F32", "U8"), lambda size: ((_blocks(size),),)),
            "weight.quant_map": Part(("F32",), lambda size: ((16,),)),
            "weight.nested_absmax": Part(
                ("F32",), lambda size: ((-(-_blocks(size) // 256),),), optional=True
            ),
            "weight.nested_quant_map": Part(("F32",), lambda size: ((256,),), optional=True),
            _STATES[0]: Part(("U8",), _text, optional=True),
            _STATES[1]: Part(("U8",), _text, optional=True),
        },
        _size_4bit,
        _read_4bit,
        _sample_4bit,
        infer=lambda header: Grouping(4, None),
    ),
    "bnb_int8": Layout(
        "bitsandbytes 8-bit",
        "weight",
        {
            "weight": Part(("I8",), lambda size: ((size.rows, size.columns),)),
            "SCB": Part(("F32",), lambda size: ((size.rows,),)),
        },
        _size_int8,
        _read_int8,
        _sample_int8,
        infer=lambda header: Grouping(8, None),
        ignored=("weight_format",),
    ),
}
