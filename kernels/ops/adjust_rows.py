"""The op `adjust_rows`: applies bias, penalties and token suppression to logits before sampling.

It uses the row state that is kept on the device; see `kernels.persistent_batch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.adjust_reference import add_listed, penalize
from penstock.kernels.persistent_batch import Adjustments
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.sampler_inputs import SeenTokens, TokenValues

MOST_BIASES, MOST_SUPPRESSED = 40, 12  # sizes of the cases


def adjust_rows(
    logits: torch.Tensor,
    adjust: Adjustments[torch.Tensor],
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Adjust `logits: [S, V]` in place: logits[i] by the adjustments of row rows[i], for a token at
    position positions[i]. `rows` and `positions`: [S]."""
    for logit, row, position in zip(logits, rows.tolist(), positions.tolist(), strict=True):
        biases = int(adjust.num_biases[row])
        if biases:
            tokens, values = adjust.bias_tokens[row, :biases], adjust.bias_values[row, :biases]
            add_listed(logit, TokenValues(_span(biases), _array(tokens), _array(values)), 0, 1)
        penalties = [column[row] for column in (adjust.presence, adjust.frequency)]
        repetition = adjust.repetition[row]
        if any(penalties) or repetition != 1:
            seen = adjust.counts[row].nonzero()[:, 0].int()
            counts = adjust.counts[row][seen.long()] - 1
            columns = (_array(column.reshape(1)) for column in (*penalties, repetition))
            listed = SeenTokens(_span(len(seen)), _array(seen), _array(counts), *columns)
            penalize(logit, listed, 0)
        if position < adjust.suppressed_until[row]:
            suppressed = adjust.suppressed[row, : adjust.num_suppressed[row]].long()
            logit[suppressed[(suppressed >= 0) & (suppressed < len(logit))]] = float("-inf")


def _array(tensor: torch.Tensor) -> Any:
    return tensor.cpu().numpy()


def _span(count: int) -> Any:
    return np.array([0, count], np.int32)


def random_adjustments(
    source: RandomInputs, rows: int, vocabulary: int
) -> Adjustments[torch.Tensor]:
    """Return random adjustments of `rows` rows and of the padding row, which has none. Row r has
    biases if bit 0 of r is set, penalties if bit 1 is set, and suppressed tokens if bit 2 is set.
    Unused entries are garbage."""
    kinds = torch.arange(rows + 1, dtype=torch.int32)
    kinds[rows] = 0
    biased, penalized, suppressed = ((kinds >> bit) & 1 for bit in range(3))
    counts = source.integers(0, 3, rows + 1, vocabulary) * source.integers(0, 3, rows + 1, 1)
    counts[(penalized == 0)] = -1

    def listed(width: int) -> torch.Tensor:
        """Return `width` distinct tokens per row; if the vocabulary is smaller, the last entries
        are -9."""
        few = min(width, vocabulary)
        chosen = [torch.randperm(vocabulary, generator=source.torch)[:few] for _ in kinds]
        tokens = torch.full((rows + 1, width), -9, dtype=torch.int32)
        tokens[:, :few] = torch.stack(chosen).int()
        return tokens

    def column(off: float) -> torch.Tensor:
        values = source.normal(rows + 1).abs() + 0.2
        return torch.where(penalized > 0, values, torch.tensor(off))

    tokens_suppressed = listed(MOST_SUPPRESSED)
    tokens_suppressed[::2, 0] = vocabulary + 3  # not in the vocabulary
    return Adjustments(
        presence=column(0.0),
        frequency=column(0.0),
        repetition=column(1.0),
        num_biases=biased * min(MOST_BIASES, vocabulary),
        num_suppressed=suppressed * min(MOST_SUPPRESSED, vocabulary),
        suppressed_until=suppressed * 20,
        counts=counts,
        bias_tokens=listed(MOST_BIASES),
        bias_values=source.normal(rows + 1, MOST_BIASES) * 3,
        suppressed=tokens_suppressed,
    )


def _inputs(rows: int, places: int, vocabulary: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(places, vocabulary) * 3
        logits[:, ::7] = float("-inf")
        return {
            "logits": logits,
            "adjust": random_adjustments(source, rows, vocabulary),
            "rows": source.integers(0, rows + 1, places),
            "positions": source.integers(10, 30, places).long(),
        }

    return make_inputs


def _hard_inputs(seed: int) -> dict[str, Any]:
    """Return inputs whose logits include infinities, NaN and numbers near the largest float32."""
    inputs = _inputs(8, 8, 90)(seed)
    inputs["rows"] = torch.arange(8, dtype=torch.int32)
    logits, adjust = inputs["logits"], inputs["adjust"]
    logits[:, :20] *= 1e38
    logits[1, 21::7] = float("inf")
    logits[7, 22::7] = float("nan")
    for row in (2, 6):  # a large factor would magnify the rounding error of the penalties
        adjust.presence[row] = adjust.frequency[row] = 0
    adjust.repetition[2], adjust.repetition[6] = 1e-20, 1e20
    return inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    columns = {name: inputs[name][one] for name in ("logits", "rows", "positions")}
    return {**inputs, **columns}


def _cost(inputs: Inputs) -> Cost:
    """Return the cost of a case: for each row with penalties, the counts are read, and the logits
    of seen tokens are read and written."""
    rows = inputs["rows"].long()
    penalized = int((inputs["adjust"].repetition[rows] != 1).sum())
    elements = penalized * inputs["logits"].shape[1]
    return Cost(12 * elements + 40 * len(rows), 4 * elements)


ADJUST_ROWS = Op(
    name="adjust_rows",
    signature=(
        "update logits float32 [S, V]; adjust Adjustments; rows int32 [S]; positions int64 [S]"
    ),
    reference=adjust_rows,
    cases=(
        Case("few", "float", _inputs(8, 9, 100)),
        Case("wide", "float", _inputs(8, 9, 9001)),
        Case("tiny-vocabulary", "float", _inputs(4, 4, 2)),
        Case("hard-numbers", "float", _hard_inputs),
    ),
    benchmarks=tuple(
        Case(f"{places}x151936", "float", _inputs(8, places, 151936)) for places in (1, 16, 64)
    ),
    tolerance={"float": Tolerance(4e-6, 1e-6)},
    cost=_cost,
    order=("triton", "reference"),
    alone=_alone,
)
