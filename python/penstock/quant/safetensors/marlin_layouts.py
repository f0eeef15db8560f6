"""The layouts of Marlin: symmetric 4-bit integers in groups, in the tiles that its GPU kernel
reads. AutoAWQ and AutoGPTQ save them under different names."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from penstock.quant.affine import pack_nibbles, unpack
from penstock.quant.safetensors.awq_layouts import AWQ_COLUMNS
from penstock.quant.safetensors.layout import (
    FACTORS_BY_GROUP,
    WORD_TYPES,
    Arrays,
    Header,
    Layout,
    Numbers,
    Part,
    Shape,
    Size,
    integer_sample,
    turned,
)
from penstock.quant.safetensors.quantization_schemes import Grouping, LayoutName

_TILE = 16
_TILES = 4
"""The kernel reads four tiles of 16 columns and 16 rows at once."""
_ROWS = _TILE * _TILES
_ZERO = 8


@functools.cache
def _places() -> npt.NDArray[np.intp]:
    """Return the place of each stored integer among those of four neighbouring tiles. A thread of
    the kernel holds 8 integers of a tile, two columns of the matrix from each quarter of it, for
    two rows that are 8 apart; its nibbles are in the order of AWQ."""
    thread = np.arange(32)
    column = 2 * (thread % 4)[:, None] + np.array([0, 1, 8, 9])
    row = (thread // 4)[:, None] + np.array([0, 8])
    of_tile = (_TILE * column[:, None, :] + row[:, :, None]).reshape(32, 8)
    tiles = of_tile[:, None, :] + _TILE * _TILE * np.arange(_TILES)[:, None]
    places: npt.NDArray[np.intp] = tiles[:, :, AWQ_COLUMNS].reshape(-1)
    return places


def _scale_places(groups: int) -> npt.NDArray[np.intp]:
    """Return the place of each stored scale: among 64 rows, or 32 if a column has one group."""
    if groups > 1:
        places: npt.NDArray[np.intp] = np.arange(64).reshape(8, 8).T
    else:
        places = 2 * np.arange(4)[:, None] + np.array([0, 1, 8, 9, 16, 17, 24, 25])
    flat: npt.NDArray[np.intp] = places.reshape(-1)
    return flat


def _size(shape: Shape, grouping: Grouping, header: Header) -> Size:
    rows = shape[1] // 2
    if rows % _ROWS or shape[1] % 2:
        raise ValueError(f"has {rows} rows; Marlin needs a multiple of {_ROWS}")
    return Size(rows, shape[0] * _TILE, grouping)


def _numbers(
    words: npt.NDArray[np.generic], stored: npt.NDArray[np.float32], size: Size
) -> Numbers:
    packed = unpack(words, 4).reshape(-1, len(_places()))
    tiles = np.empty_like(packed)
    tiles[:, _places()] = packed
    turned_q = tiles.reshape(size.columns // _TILE, size.rows // _TILE, _TILE, _TILE)
    q = turned_q.transpose(1, 3, 0, 2).reshape(size.rows, size.columns)
    places = _scale_places(size.groups)
    scale = np.empty_like(stored).reshape(-1, len(places))
    scale[:, places] = stored.reshape(-1, len(places))
    scale = turned(scale.reshape(stored.shape))
    return Numbers(pack_nibbles(q), scale, np.full(scale.shape, _ZERO, np.uint8))


def _of_autogptq(arrays: Arrays, size: Size) -> Numbers:
    return _numbers(arrays["B"], arrays["s"], size)


def _of_autoawq(arrays: Arrays, size: Size) -> Numbers:
    return _numbers(arrays["qweight"], arrays["scales"], size)


_QUANTS = Part(WORD_TYPES, lambda size: ((size.columns // _TILE, 2 * size.rows),))


MARLIN_LAYOUTS: dict[LayoutName, Layout] = {
    "marlin": Layout(
        "GPTQ",
        "B",
        {"B": _QUANTS, "s": FACTORS_BY_GROUP},
        _size,
        _of_autogptq,
        integer_sample,
        ignored=("workspace",),
    ),
    "awq_marlin": Layout(
        "AWQ",
        "qweight",
        {"qweight": _QUANTS, "scales": FACTORS_BY_GROUP},
        _size,
        _of_autoawq,
        integer_sample,
        ignored=("workspace",),
    ),
}
