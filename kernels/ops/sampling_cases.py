"""Inputs of the sampler for which every correct implementation returns the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.adjust_reference import adjust_logits
from penstock.kernels.ops.sampling_reference import sample_row, uniform
from penstock.kernels.sampler_inputs import SamplingRows, SeenTokens, TokenValues


def _rows(source: RandomInputs, rows: int, settings: str, vocabulary: int) -> SamplingRows:
    """Return random sampling parameters of `rows` rows. `settings`: "greedy", "mixed" (all
    parameters), or the names of the parameters to use, joined by '+'."""
    generator = source.numpy
    on = {name: name in settings or settings == "mixed" for name in ("top_k", "top_p", "min_p")}
    temperature = np.zeros(rows) if settings == "greedy" else generator.uniform(0.3, 2.0, rows)
    top_k = generator.integers(1, max(vocabulary // 2, 2), rows) if on["top_k"] else np.zeros(rows)
    top_p = generator.uniform(0.2, 0.99, rows) if on["top_p"] else np.ones(rows)
    min_p = generator.uniform(0.01, 0.3, rows) if on["min_p"] else np.zeros(rows)
    if settings == "mixed" and rows >= 6:
        temperature[0], top_k[1], top_p[2], min_p[3], top_k[4], top_p[5] = 0, 0, 1, 0, 1, 0
    return SamplingRows(
        temperature.astype(np.float32),
        top_k.astype(np.int32),
        top_p.astype(np.float32),
        min_p.astype(np.float32),
        generator.integers(0, 2**64, rows, dtype=np.uint64),
        generator.integers(0, 2**40, rows, dtype=np.uint64),
    )


def _away_from_borders(logits: torch.Tensor, rows: SamplingRows) -> SamplingRows:
    """Return `rows` with other positions and, if necessary, lower top-p, so that small errors in
    sums do not change a token: every correct implementation then returns the tokens of the
    reference."""
    exact = logits.double()
    adjust_logits(exact, rows)
    top_p, position = rows.top_p.copy(), rows.position.copy()
    for row in range(len(logits)):
        for attempt in range(200):
            one = slice(row, row + 1)
            if attempt % 20 == 19 and 0 < top_p[row] < 1:
                top_p[row] *= 0.97
            temperature, top_k = float(rows.temperature[row]), int(rows.top_k[row])
            min_p = float(rows.min_p[row])
            number = float(uniform(rows.seed[one], position[one])[0])
            near = {
                sample_row(exact[row], temperature, top_k, p, m, u)
                for p in (_nudge(float(top_p[row]), -1), _nudge(float(top_p[row]), 1))
                for m in (min_p * (1 - 1e-5), min_p * (1 + 1e-5))
                for u in (number * (1 - 3e-5), number * (1 + 3e-5))
            }
            if len(near) == 1:
                break
            position[row] += np.uint64(1)
    return replace(rows, top_p=top_p, position=position)


def _nudge(top_p: float, direction: int) -> float:
    return top_p if top_p in (0.0, 1.0) else top_p * (1 + direction * 3e-5)


def random_logits(
    rows: int, vocabulary: int, settings: str, num_distinct: int = 0, features: str = ""
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes logits and sampling parameters.

    `settings`: see `_rows`.
    `num_distinct`: 0: any logits; otherwise logits are rounded, so that about `num_distinct`
        distinct logits remain and there are ties at every border.
    `features`: the adjustments before sampling, joined by '+'.
    """

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(rows, vocabulary) * 3
        if num_distinct:
            logits = (logits * num_distinct / 12).round() * 12 / num_distinct
        chosen = _rows(source, rows, settings, vocabulary)
        chosen = _with_features(chosen, source, vocabulary, features)
        return {"logits": logits, "rows": _away_from_borders(logits, chosen)}

    return make_inputs


def plain_rows(source: RandomInputs, rows: int) -> SamplingRows:
    """Return the parameters of `rows` rows that sample at a temperature and adjust no logits."""
    return _rows(source, rows, "temperature", 0)


def random_features(
    source: RandomInputs, rows: int, vocabulary: int, features: str
) -> SamplingRows:
    """Return `plain_rows` with random adjustments. `features`: their names, joined by '+': "bias",
    "seen", "dry", "mask". If there are several rows, the last has only the first mask."""
    return _with_features(plain_rows(source, rows), source, vocabulary, features)


def _with_features(
    plain: SamplingRows, source: RandomInputs, vocabulary: int, features: str
) -> SamplingRows:
    rows, generator = len(plain.temperature), source.numpy
    values: dict[str, Any] = {}
    if "bias" in features:
        values["bias"] = _token_values(source, rows, vocabulary, -5, 5)
    if "seen" in features:
        starts, tokens = _some_tokens(source, rows, vocabulary)
        values["seen"] = SeenTokens(
            starts,
            tokens,
            generator.integers(0, 5, len(tokens)).astype(np.int32),
            generator.uniform(-2, 2, rows).astype(np.float32),
            generator.uniform(-2, 2, rows).astype(np.float32),
            generator.uniform(0.7, 1.6, rows).astype(np.float32),
        )
    if "dry" in features:
        values["dry"] = _token_values(source, rows, vocabulary, 0.1, 20)
    if "mask" in features:
        words, count = -(-vocabulary // 32), max(rows // 2, 1)
        masks = generator.integers(0, 2**32, (count, words), dtype=np.uint32)
        masks[0, ::3], masks[0, 1::3] = 0xFFFFFFFF, 0
        masks[:, 0] |= 1
        values["masks"] = masks
        values["mask_of"] = (np.arange(rows) % (count + 1) - 1).astype(np.int32)
        values["mask_of"][-1] = 0
    return replace(plain, **values)


def _token_values(
    source: RandomInputs, rows: int, vocabulary: int, least: float, most: float
) -> TokenValues:
    starts, tokens = _some_tokens(source, rows, vocabulary)
    values = source.numpy.uniform(least, most, len(tokens)).astype(np.float32)
    return TokenValues(starts, tokens, values)


def _some_tokens(source: RandomInputs, rows: int, vocabulary: int) -> tuple[Any, Any]:
    """Return (starts, tokens): for each row a list of distinct tokens, up to half of the
    vocabulary. The last of several rows has an empty list."""
    most = min(max(vocabulary // 2, 1), 2000)
    lengths = source.numpy.integers(1, most + 1, rows)
    if rows > 1:
        lengths[-1] = 0
    tokens = [source.numpy.permutation(vocabulary)[:length] for length in lengths]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return starts.astype(np.int32), np.concatenate(tokens).astype(np.int32)


def unusable_logits(seed: int) -> dict[str, Any]:
    """Return inputs with a row that contains NaN, a row that contains +inf, a row of only -inf, and
    three usable rows, two of them with -inf."""
    source = RandomInputs(seed)
    logits = source.normal(6, 70)
    logits[0, 69], logits[1, 3], logits[2] = float("nan"), float("inf"), float("-inf")
    logits[3, ::2] = float("-inf")
    logits[4, 1:] = float("-inf")
    rows = _rows(source, 6, "temperature", 70)
    rows.temperature[5] = 0
    return {"logits": logits, "rows": _away_from_borders(logits, rows)}


def barren_logits(seed: int) -> dict[str, Any]:
    """Return inputs with masks. In order, the masks of the rows allow only bits beyond the
    vocabulary; one token; one token whose logit is -inf; one token, and another one has the logit
    NaN; one token whose logit is NaN. The last row has no mask."""
    source = RandomInputs(seed)
    logits = source.normal(6, 70)
    logits[2, 5], logits[3, 6], logits[4, 6] = float("-inf"), float("nan"), float("nan")
    masks = np.zeros((3, 3), np.uint32)
    masks[0, 2], masks[1, 0], masks[2, 0] = 0xFFFFFFC0, 1 << 5, 1 << 6
    rows = replace(
        _rows(source, 6, "temperature", 70),
        masks=masks,
        mask_of=np.array([0, 1, 1, 1, 2, -1], np.int32),
    )
    rows.temperature[0] = 0
    return {"logits": logits, "rows": _away_from_borders(logits, rows)}
