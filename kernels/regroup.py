"""Splits the groups of integer weights into smaller groups."""

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
