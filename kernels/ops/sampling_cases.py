"""Inputs of the samplers, drawn where every correct implementation gives the same token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.kernels.draw import Draw
from penstock.kernels.ops.sampling_reference import sample_row, uniform
from penstock.kernels.sampling import SamplingRows


def _rows(source: Draw, rows: int, settings: str, vocabulary: int) -> SamplingRows:
    """Parameters of `rows` rows: "greedy", "mixed", or the names of what is on, joined by '+'."""
    draw = source.numpy
    on = {name: name in settings or settings == "mixed" for name in ("top_k", "top_p", "min_p")}
    temperature = np.zeros(rows) if settings == "greedy" else draw.uniform(0.3, 2.0, rows)
    top_k = draw.integers(1, max(vocabulary // 2, 2), rows) if on["top_k"] else np.zeros(rows)
    top_p = draw.uniform(0.2, 0.99, rows) if on["top_p"] else np.ones(rows)
    min_p = draw.uniform(0.01, 0.3, rows) if on["min_p"] else np.zeros(rows)
    if settings == "mixed" and rows >= 6:
        temperature[0], top_k[1], top_p[2], min_p[3], top_k[4], top_p[5] = 0, 0, 1, 0, 1, 0
    return SamplingRows(
        temperature.astype(np.float32),
        top_k.astype(np.int32),
        top_p.astype(np.float32),
        min_p.astype(np.float32),
        draw.integers(0, 2**64, rows, dtype=np.uint64),
        draw.integers(0, 2**40, rows, dtype=np.uint64),
    )


def _away_from_borders(logits: torch.Tensor, rows: SamplingRows) -> SamplingRows:
    """`rows` with positions moved on, and then top-p, until small errors in the sums change no
    token: every correct implementation gives the reference's."""
    exact = logits.double()
    top_p, position = rows.top_p.copy(), rows.position.copy()
    for row in range(len(logits)):
        for attempt in range(200):
            one = slice(row, row + 1)
            if attempt % 20 == 19 and 0 < top_p[row] < 1:
                top_p[row] *= 0.97
            fields = (rows.temperature[row], rows.top_k[row], float(top_p[row]), rows.min_p[row])
            draw = float(uniform(rows.seed[one], position[one])[0])
            near = {
                sample_row(exact[row], *map(float, fields[:1]), int(fields[1]), p, m, u)
                for p in (_nudge(fields[2], -1), _nudge(fields[2], 1))
                for m in (float(fields[3]) * (1 - 1e-5), float(fields[3]) * (1 + 1e-5))
                for u in (draw * (1 - 3e-5), draw * (1 + 3e-5))
            }
            if len(near) == 1:
                break
            position[row] += np.uint64(1)
    return SamplingRows(rows.temperature, rows.top_k, top_p, rows.min_p, rows.seed, position)


def _nudge(top_p: float, direction: int) -> float:
    return top_p if top_p in (0.0, 1.0) else top_p * (1 + direction * 3e-5)


def draw_logits(
    rows: int, vocabulary: int, settings: str, levels: int = 0
) -> Callable[[int], dict[str, Any]]:
    """`levels` > 0 rounds the logits to so many values, which makes ties at every border."""

    def draw(seed: int) -> dict[str, Any]:
        source = Draw(seed)
        logits = source.normal(rows, vocabulary) * 3
        if levels:
            logits = (logits * levels / 12).round() * 12 / levels
        chosen = _rows(source, rows, settings, vocabulary)
        return {"logits": logits, "rows": _away_from_borders(logits, chosen)}

    return draw


def draw_unusable(seed: int) -> dict[str, Any]:
    """A row with NaN, one with +inf, one of -inf alone; and good rows with -inf in them."""
    source = Draw(seed)
    logits = source.normal(6, 70)
    logits[0, 69], logits[1, 3], logits[2] = float("nan"), float("inf"), float("-inf")
    logits[3, ::2] = float("-inf")
    logits[4, 1:] = float("-inf")
    rows = _rows(source, 6, "temperature", 70)
    rows.temperature[5] = 0
    return {"logits": logits, "rows": _away_from_borders(logits, rows)}
