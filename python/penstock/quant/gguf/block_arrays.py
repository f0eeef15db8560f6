"""Arrays of GGML blocks: their fields, and the conversion of their quants piece by piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Blocks = npt.NDArray[np.void]
Lanes = npt.NDArray[np.uint64]
Fill = Callable[[Blocks, Bytes], None]
"""Converts the quants of some blocks and writes them to the second argument."""

PIECE_BYTES = 1 << 18  # of quants; the temporary arrays of a piece are two to three times as large

LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
LOW_BITS = np.uint64(0x0101010101010101)
LOW_PAIRS = np.uint64(0x0303030303030303)


def fill_quants(blocks: Blocks, bytes_per_block: int, fill: Fill) -> Bytes:
    """Return the quants of all blocks as one flat array. `fill(piece, out)` converts the quants of
    a piece of the blocks and writes them to `out`."""
    out = np.empty(len(blocks) * bytes_per_block, np.uint8)
    step = PIECE_BYTES // bytes_per_block
    for start in range(0, len(blocks), step):
        piece = blocks[start : start + step]
        first = start * bytes_per_block
        fill(piece, out[first : first + len(piece) * bytes_per_block])
    return out


def field_bytes(blocks: Blocks, field: str) -> Bytes:
    """Return the bytes of a field as [blocks, bytes]."""
    return np.ascontiguousarray(blocks[field]).view(np.uint8).reshape(len(blocks), -1)


def column(blocks: Blocks, field: str, shape: tuple[int, int]) -> npt.NDArray[np.float16]:
    """Return the float16 `field` of each block as [N, blocks per row]."""
    values: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[field])
    return values.reshape(shape[0], -1)


def lanes(blocks: Blocks, field: str) -> Lanes:
    """Return a field of all blocks as 64-bit words."""
    return np.ascontiguousarray(blocks[field]).view(np.uint64)


def nibbles(blocks: Blocks) -> tuple[Lanes, Lanes]:
    """Return the low nibbles and the high nibbles of `qs`, one nibble per byte."""
    low = lanes(blocks, "qs")
    high = low >> np.uint64(4)
    high &= LOW_NIBBLES
    return low & LOW_NIBBLES, high


def join_pairs(values: Lanes) -> Bytes:
    """Pack each pair of bytes (a, b), both in 0..15, into one byte a | b << 4. Modifies
    `values`."""
    values |= values >> np.uint64(4)
    return values.view(np.uint16).astype(np.uint8)  # drops the byte of b


def shifted_runs(items: Blocks, shifts: range) -> Lanes:
    """Return each 32-byte item once per entry of `shifts`, shifted right by that many bits; the
    result is flat, item by item. Bits cross into the next lower byte; the caller must mask them."""
    repeated = np.repeat(items, len(shifts)).view(np.uint64)
    amounts = np.repeat(np.array(shifts, np.uint64), 4)
    repeated.reshape(-1, len(amounts))[:] >>= amounts
    return repeated


def bit_pairs(blocks: Blocks) -> Lanes:
    """Unpack the bit pairs of `qs` to one byte each. Each 32 bytes hold four runs of 32
    elements."""
    pairs = shifted_runs(np.ascontiguousarray(blocks["qs"]).view("V32"), range(0, 8, 2))
    pairs &= LOW_PAIRS
    return pairs
