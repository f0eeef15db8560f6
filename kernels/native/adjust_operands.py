"""Builds the operands of the native kernel `adjust_logits`. A feature that no row uses has empty
arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampler_inputs import SamplingRows, SeenTokens, TokenValues

Arrays = list[npt.NDArray[Any]]
_NO_TOKENS = np.empty(0, np.int32)
_NO_VALUES = np.empty(0, np.float32)


def adjust_operands(shape: tuple[int, ...], rows: SamplingRows) -> Arrays:
    """Return the operands of the kernel `adjust_logits` between its logits of `shape` = [S, V] and
    its result; see adjust_logits.inl.h."""
    count, vocabulary = shape
    return [
        *_listed(rows.bias, count),
        *_seen(rows.seen, count),
        *_listed(rows.dry, count),
        *_masked(rows, count, -(-vocabulary // 32)),
    ]


def _listed(part: TokenValues | None, count: int) -> Arrays:
    if part is None:
        return [_no_starts(count), _NO_TOKENS, _NO_VALUES]
    return [part.starts, part.tokens, part.values]


def _seen(part: SeenTokens | None, count: int) -> Arrays:
    if part is None:
        off = np.zeros(count, np.float32)
        return [_no_starts(count), _NO_TOKENS, _NO_TOKENS, off, off, off]
    penalties = [part.presence, part.frequency, part.repetition]
    return [part.starts, part.tokens, part.counts, *penalties]


def _masked(rows: SamplingRows, count: int, words: int) -> Arrays:
    if rows.masks is None or rows.mask_of is None:
        return [np.empty((0, words), np.int32), np.zeros(count, np.int32)]
    return [rows.masks.view(np.int32), rows.mask_of + np.int32(1)]


def _no_starts(count: int) -> npt.NDArray[np.int32]:
    return np.zeros(count + 1, np.int32)
