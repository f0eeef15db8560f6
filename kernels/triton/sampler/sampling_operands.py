"""The sampler's parameters as tensors on the device of the logits: arrays on the host are copied,
tensors on the device are used as they are.

A runtime that keeps its rows on the device passes `SamplingRows` of tensors: the call then copies
nothing from the host and can be captured. These tensors have the shapes of
`kernels.sampler_inputs`, with int64 for uint64 and int32 for uint32 (the same bits).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

from penstock.kernels.sampler_inputs import SamplingRows, SeenTokens, TokenValues

Device: TypeAlias = "torch.device | str"
_SIGNED = {np.dtype(np.uint32): np.int32, np.dtype(np.uint64): np.int64}


def on_device(array: Any, device: Device) -> torch.Tensor:
    """Return the array as a tensor on the device. Unsigned integers become signed integers with the
    same bits."""
    if isinstance(array, torch.Tensor):
        assert array.device == torch.device(device), f"{array.device}, not {device}"
        return array
    signed = _SIGNED.get(array.dtype)
    return torch.from_numpy(array if signed is None else array.view(signed)).to(device)


def sampling_tensors(rows: SamplingRows, device: Device) -> list[torch.Tensor]:
    """Return temperature, top_k, top_p, min_p, seed, position: [S] each."""
    fields = (rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seed, rows.position)
    return [on_device(field, device) for field in fields]


def adjust_tensors(count: int, words: int, rows: SamplingRows, device: Device) -> list[Any]:
    """Return the operands of `adjust_logits_kernel` between `logits` and `barren`, with empty lists
    for features that no row uses. `count`: number of rows. `words`: 32-bit words of a token mask.

    The operands are: bias (starts, tokens, values); seen tokens (starts, tokens, counts, presence,
    frequency, repetition); DRY (starts, tokens, values); masks [num_masks, words], and the index of
    each row's mask, -1 for a row without a mask.
    """
    return [
        *_listed(rows.bias, count, device),
        *_seen(rows.seen, count, device),
        *_listed(rows.dry, count, device),
        *_masked(rows, count, words, device),
    ]


def _listed(part: TokenValues | None, count: int, device: Device) -> list[torch.Tensor]:
    if part is None:
        return [_no_starts(count, device), _none(device, torch.int32), _none(device)]
    return [on_device(field, device) for field in (part.starts, part.tokens, part.values)]


def _seen(part: SeenTokens | None, count: int, device: Device) -> list[torch.Tensor]:
    if part is None:
        none, off = _none(device, torch.int32), torch.zeros(count, device=device)
        return [_no_starts(count, device), none, none, off, off, off]
    lists = (part.starts, part.tokens, part.counts)
    penalties = (part.presence, part.frequency, part.repetition)
    return [on_device(field, device) for field in (*lists, *penalties)]


def _masked(rows: SamplingRows, count: int, words: int, device: Device) -> list[torch.Tensor]:
    if rows.masks is None or rows.mask_of is None:
        nobody = torch.full((count,), -1, dtype=torch.int32, device=device)
        return [torch.zeros(1, words, dtype=torch.int32, device=device), nobody]
    return [on_device(rows.masks, device), on_device(rows.mask_of, device)]


def _none(device: Device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor of one element that is never read; a kernel needs some address as its
    argument."""
    return torch.zeros(1, dtype=dtype, device=device)


def _no_starts(count: int, device: Device) -> torch.Tensor:
    return torch.zeros(count + 1, dtype=torch.int32, device=device)
