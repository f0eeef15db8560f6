"""The op `embedding`: reads rows of an embedding table, dense or affine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.dequantize import dequantize, stored_bytes
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.weights import Affine, Matrix


def pack_embedding(table: Matrix, device: str = "cpu", dtype: Any = torch.float32) -> torch.Tensor:
    """Return the dequantized table: [V, C] of `dtype`."""
    return dequantize(table, dtype).to(device)


def embedding(table: torch.Tensor, tokens: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the rows of `table: [V, C]` for `tokens: [T]` int32, times `scale`: [T, C]."""
    return table[tokens.long()] * scale


def _inputs(
    like: str, vocabulary: int, width: int, tokens: int, scale: float = 1.0
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        table: Matrix
        if like in ("f32", "f16", "bf16"):
            table = source.dense(vocabulary, width, like)  # type: ignore[arg-type]
        else:
            table = source.affine(vocabulary, width, like)
        ids = source.integers(0, vocabulary, tokens)
        ids[-1] = vocabulary - 1
        return {"table": table, "tokens": ids, "scale": scale}

    return make_inputs


def _cost(inputs: Inputs) -> Cost:
    table, tokens = inputs["table"], len(inputs["tokens"])
    rows, width = table.shape
    operations = 2 * tokens * width if isinstance(table, Affine) else 0
    return Cost(tokens * (4 + 4 * width) + stored_bytes(table) * tokens // rows, operations)


EMBEDDING = Op(
    name="embedding",
    signature="table packed [V, C]; tokens int32 [T]; real scale; write out float [T, C]",
    reference=embedding,
    pack=pack_embedding,
    cases=tuple(
        Case(
            f"{like}-{vocabulary}x{width}-T{tokens}",
            "float",
            _inputs(like, vocabulary, width, tokens),
        )
        for like, vocabulary, width, tokens in (
            ("f32", 50, 64, 1),
            ("f16", 33, 96, 7),
            ("bf16", 50, 64, 17),
            ("f16", 20, 1100, 2),
            ("q8_0", 20, 1088, 3),
            ("q4_0", 40, 64, 3),
            ("q4_1", 40, 576, 5),
            ("q5_1", 40, 64, 3),
            ("q8_0", 40, 96, 5),
            ("q2_k", 40, 512, 5),
            ("q3_k", 40, 288, 5),
            ("q4_k", 40, 512, 5),
            ("q6_k", 40, 288, 5),
            ("iq4_xs", 40, 288, 5),
            ("nvfp4", 40, 96, 5),
            ("iq3_s", 40, 256, 3),
            ("int4_g128", 40, 288, 5),
            ("int8_rows", 40, 96, 3),
        )
    )
    + tuple(
        Case(f"{like}-scaled", "float", _inputs(like, 40, 288, 5, scale=288**0.5))
        for like in ("f32", "q8_0")
    ),
    benchmarks=(
        Case("smollm2-q8_0-T512", "float", _inputs("q8_0", 49152, 576, 512)),
        Case("smollm2-f16-T512", "float", _inputs("f16", 49152, 576, 512)),
    ),
    tolerance={"float": Tolerance(1e-6, 1e-6)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=lambda inputs, index: {**inputs, "tokens": inputs["tokens"][index : index + 1]},
)
