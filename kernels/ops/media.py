"""Ops for the tokens of images, videos and recordings in a decoder: `replace_rows` and `add_rows`
place embeddings, `mrope_rows` selects rotations by three positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def replace_rows(x: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows[index[t]] for each t with index[t] >= 0, else x[t]: [T, W], [M, W], [T] -> [T,
    W]."""
    chosen = rows[index.long().clamp(min=0)].to(x.dtype)
    return torch.where(index[:, None] >= 0, chosen, x)


def add_rows(x: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return x[t] + rows[index[t]] for each t with index[t] >= 0, else x[t]: [T, W], [M, W], [T] ->
    [T, W]."""
    chosen = rows[index.long().clamp(min=0)].to(x.dtype)
    return torch.where(index[:, None] >= 0, x + chosen, x)


def mrope_rows(
    table: torch.Tensor,
    time: torch.Tensor,
    height: torch.Tensor,
    width: torch.Tensor,
    axis: torch.Tensor,
) -> torch.Tensor:
    """Return a rope table with one row per token: [T, 2 * pairs] float32. Cosine and sine of pair i
    are those of `table` [positions, 2 * pairs] at the token's time, height or width, if axis[i] is
    0, 1 or 2."""
    positions = torch.stack((time, height, width)).long()[axis.long()]  # [pairs, T]
    pairs = len(axis)
    column = torch.arange(pairs, device=table.device)[:, None]
    return torch.cat((table[positions, column], table[positions, pairs + column])).T.contiguous()


def _indexed(tokens: int, width: int, media: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        index = source.integers(0, media, tokens)
        index[source.normal(tokens) < 0] = -1
        index[: min(2, tokens)] = torch.tensor([media - 1, -7])[: min(2, tokens)]
        return {
            "x": source.normal(tokens, width),
            "rows": source.normal(media, width),
            "index": index,
        }

    return make_inputs


def _table_inputs(tokens: int, pairs: int, positions: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        axis = source.integers(0, 3, pairs)
        axis[: min(3, pairs)] = torch.tensor([2, 1, 0])[: min(3, pairs)]
        time, height, width = (source.integers(0, positions, tokens) for _ in range(3))
        return {
            "table": source.normal(positions, 2 * pairs),
            "time": time,
            "height": height,
            "width": width,
            "axis": axis,
        }

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    return {**inputs, "x": inputs["x"][one], "index": inputs["index"][one]}


def _alone_position(inputs: Inputs, index: int) -> dict[str, Any]:
    positions = {name: inputs[name][index : index + 1] for name in ("time", "height", "width")}
    return {**inputs, **positions}


_SHAPES = ((1, 32, 1), (17, 100, 5), (2, 576, 9), (9, 1100, 3))
_ORDER = ("triton", "native", "reference")

REPLACE_ROWS, ADD_ROWS = (
    Op(
        name=name,
        signature=("x float [T, W]; rows float [M, W]; index int32 [T]; write out float [T, W]"),
        reference=reference,
        cases=tuple(Case(f"T{t}-W{w}-M{m}", kind, _indexed(t, w, m)) for t, w, m in _SHAPES),
        benchmarks=(Case("qwen2b-T512", kind, _indexed(512, 2048, 1024)),),
        tolerance={kind: tolerance},
        cost=lambda inputs: Cost(8 * inputs["x"].numel(), 0),
        order=_ORDER,
        alone=_alone,
    )
    for name, reference, kind, tolerance in (
        ("replace_rows", replace_rows, "exact", Tolerance(0.0, 0.0)),
        ("add_rows", add_rows, "float", Tolerance(1e-6, 1e-6)),
    )
)
MROPE_ROWS = Op(
    name="mrope_rows",
    signature=(
        "table float32 [positions, 2*pairs]; time int32 [T]; height int32 [T]; width int32 [T]; "
        "axis int32 [pairs]; write out float32 [T, 2*pairs]"
    ),
    reference=mrope_rows,
    cases=tuple(
        Case(f"T{tokens}-pairs{pairs}", "exact", _table_inputs(tokens, pairs, positions))
        for tokens, pairs, positions in ((1, 64, 5), (17, 40, 30), (5, 7, 100))
    ),
    benchmarks=(Case("qwen2b-T512", "exact", _table_inputs(512, 64, 4096)),),
    tolerance={"exact": Tolerance(0.0, 0.0)},
    cost=lambda inputs: Cost(8 * len(inputs["time"]) * inputs["table"].shape[1], 0),
    order=_ORDER,
    alone=_alone_position,
)
