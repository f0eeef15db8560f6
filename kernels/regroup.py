"""Splits the groups of integer weights into smaller groups, and recognizes integers that fit fewer
bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Affine


def split_groups(matrix: Affine, group: int) -> Affine:
    """Return the same weights in groups of `group` columns, with repeated scales. `group` must
    divide `matrix.group`; if both are equal, return `matrix` itself."""
    if group == matrix.group:
        return matrix
    assert matrix.group % group == 0 and matrix.super_scale is None
    columns = matrix.shape[1]

    def cut(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        repeated = np.repeat(values, matrix.group // group, axis=1)
        return np.ascontiguousarray(repeated[:, : -(-columns // group)])

    minimum = None if matrix.minimum is None else cut(matrix.minimum)
    return replace(matrix, group=group, scale=cut(matrix.scale), minimum=minimum)


_SCANNED = 1 << 16


def has_half_steps(matrix: Affine) -> bool:
    """Return whether 8-bit integers are even numbers from 0 to 30 with an odd zero point, as in IQ1
    and IQ3_S: half of them and a minimum are the same weights in 4 bits."""
    zero = matrix.zero_point
    if matrix.bits == 4 or matrix.minimum is not None or zero % 2 == 0 or zero > 15:
        return False
    flat = matrix.q.reshape(-1)
    pieces = (flat[at : at + _SCANNED] for at in range(0, flat.size, _SCANNED))
    return all(int(np.bitwise_or.reduce(piece)) & 0xE1 == 0 for piece in pieces)
