"""The weights of latent attention: the order of their rows, and matrices of single heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Linear, Matrix
from penstock.models.decoder.mixer import Vector
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import take_rows

Order = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """The weights of one layer. H heads, N plain and R rotated elements of a query, L elements of
    a latent, V elements of a value; rotated elements are ordered in halves.

    - `q` [H (N + R), C]: the queries, from the hidden state or from the compressed one.
    - `q_down` [C, W], `q_norm` [C]: compress the hidden state for the queries, or None.
    - `kv` [L + R, W], `kv_norm` [L]: the latent and the shared part of the keys.
    - `keys`, `values`: for each head a matrix [L, N] and a matrix [V, L].
    - `out` [W, H V].
    """

    q: Linear
    q_down: Linear | None
    q_norm: Vector | None
    kv: Linear
    kv_norm: Vector
    keys: Linear
    values: Linear
    out: Linear


def halves(groups: int, plain: int, rotated: int) -> Order:
    """Return the order of rows that turns pairs into halves in `rotated` rows, which follow `plain`
    other rows in each of `groups` groups."""
    size = plain + rotated
    rows = np.arange(size)
    rows[plain:] = plain + np.arange(rotated).reshape(-1, 2).T.reshape(-1)
    return (np.arange(groups)[:, None] * size + rows).reshape(-1)


def reordered(linear: Linear, rows: Order) -> Linear:
    """Return a linear layer of one matrix with its rows in another order."""
    (matrix,) = linear.parts
    bias = None if linear.bias is None else linear.bias[rows]
    return Linear((take_rows(matrix, rows),), bias)


def as_floats(matrix: Matrix) -> Dense:
    """Return a matrix as floats: float matrices unchanged, others as float16."""
    if isinstance(matrix, Dense):
        return matrix
    return Dense(dequantize(matrix).astype(np.float16), "f16")


def split_heads(whole: Dense, heads: int, keys: int) -> tuple[Linear, Linear]:
    """Return the matrices [L, N] of the keys and [V, L] of the values of all heads. `whole`: [H (N
    + V), L], the rows of keys and values of each head in turn. `keys`: N."""
    by_head = whole.data.reshape(heads, -1, whole.data.shape[1])
    return (
        Linear(tuple(_dense(head[:keys].T, whole) for head in by_head)),
        Linear(tuple(_dense(head[keys:], whole) for head in by_head)),
    )


def _dense(values: npt.NDArray[np.generic], like: Dense) -> Dense:
    return Dense(np.ascontiguousarray(values), like.dtype)
