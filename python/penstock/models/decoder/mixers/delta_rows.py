"""The order of rows in the matrices of gated delta nets, and in the modules of adapters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.models.decoder.lora_block import LoraTarget, PlacedRows, inside, whole

Order = npt.NDArray[np.intp]


def rows_by_group(groups: int, sizes: Sequence[int]) -> list[Order]:
    """Return the rows of each part of a matrix whose groups of rows have the parts of `sizes` rows
    in turn."""
    rows = np.arange(groups * sum(sizes)).reshape(groups, -1)
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    return [part.reshape(-1) for part in parts]


def grouped_heads(groups: int, heads: int) -> Order:
    """Return the place of each head in a file where head h has the keys of group h % groups; here,
    heads with common keys are neighbours."""
    grouped: Order = np.arange(heads).reshape(-1, groups).T.reshape(-1)
    return grouped


def rows_of_heads(heads: Order, dim: int) -> Order:
    """Return the rows of `heads` of `dim` rows each."""
    return (heads[:, None] * dim + np.arange(dim)).reshape(-1)


def separate_targets() -> dict[str, LoraTarget]:
    """Return the modules of a net that projects queries, keys and values apart."""
    parts = {role: f"{role}_proj" for role in ("q", "k", "v", "b", "a")}
    parts |= {"z": "g_proj", "out": "o_proj"}
    return inside({name: whole(part) for part, name in parts.items()}, "linear_attn")


def joined_targets(qkvz: Sequence[Order], ba: Sequence[Order]) -> dict[str, LoraTarget]:
    """Return the modules of a net that projects queries, keys and values together. `qkvz`, `ba`:
    the rows of each part in modules that have those of each group in turn."""
    *qkv, z = qkvz
    b, a = ba
    targets = {
        "in_proj_qkv": whole("qkv"),
        "in_proj_z": whole("z"),
        "in_proj_b": whole("b"),
        "in_proj_a": whole("a"),
        "in_proj_qkvz": (PlacedRows("qkv", np.concatenate(qkv)), PlacedRows("z", z)),
        "in_proj_ba": (PlacedRows("b", b), PlacedRows("a", a)),
        "out_proj": whole("out"),
    }
    return inside(targets, "linear_attn")
