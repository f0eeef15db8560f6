"""Reference of the adjustment of logits before sampling: bias, penalties, DRY, mask."""

from __future__ import annotations

from typing import Any

import torch

from penstock.kernels.sampler_inputs import NOTHING_ALLOWED, SamplingRows, SeenTokens, TokenValues

_LARGEST = torch.finfo(torch.float32).max


def adjust_logits(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Adjust `logits: [S, V]` in place. Return [S] int32: NOTHING_ALLOWED for a row whose mask
    allows no token, else 0."""
    barren = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
    for index, row in enumerate(logits):
        if rows.bias is not None:
            add_listed(row, rows.bias, index, 1)
        if rows.seen is not None:
            penalize(row, rows.seen, index)
        if rows.dry is not None:
            add_listed(row, rows.dry, index, -1)
        if rows.masks is not None and rows.mask_of is not None and rows.mask_of[index] >= 0:
            words = _words(rows.masks[int(rows.mask_of[index])]).to(row.device)
            token = torch.arange(len(row), device=row.device)
            allowed = words[token // 32] >> (token % 32) & 1
            row[allowed == 0] = float("-inf")
            barren[index] = 0 if allowed.any() else NOTHING_ALLOWED
    return barren


def add_listed(row: torch.Tensor, listed: TokenValues, index: int, sign: int) -> None:
    """Add `sign` times the values that `listed` has for row `index` to the logits `row: [V]`, in
    place."""
    span = slice(*listed.starts[index : index + 2].tolist())
    tokens = torch.from_numpy(listed.tokens[span]).to(row.device).long()
    values = torch.from_numpy(listed.values[span]).to(row)
    row[tokens] = _saturated(row[tokens] + sign * values, row[tokens])


def penalize(row: torch.Tensor, seen: SeenTokens, index: int) -> None:
    """Apply the penalties that `seen` has for row `index` to the logits `row: [V]`, in place."""
    span = slice(*seen.starts[index : index + 2].tolist())
    tokens = torch.from_numpy(seen.tokens[span]).to(row.device).long()
    counts = torch.from_numpy(seen.counts[span]).to(row)
    before = row[tokens]
    cost = float(seen.presence[index]) + float(seen.frequency[index]) * counts
    x = _saturated(torch.where(counts > 0, before - cost, before), before)
    repetition = float(seen.repetition[index])
    row[tokens] = _saturated(torch.where(x > 0, x / repetition, x * repetition), before)


def _words(mask: Any) -> torch.Tensor:
    """Return the words of a mask, an array of uint32 or a tensor of int32, as int64."""
    signed = mask if isinstance(mask, torch.Tensor) else torch.from_numpy(mask.view("int32"))
    return signed.long() & 0xFFFFFFFF


def _saturated(after: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return `after`, clamped to finite float32 numbers where `before` is finite."""
    return torch.where(before.isfinite(), after.clamp(-_LARGEST, _LARGEST), after)
