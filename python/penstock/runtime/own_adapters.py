"""Makes room in an engine for the adapters that belong to its model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.adapters.peft_config import WEIGHTS_NAME
from penstock.config import EngineSettings, LoraSettings
from penstock.models.towers.tower import MediaMode, MediaSpec
from penstock.quant.safetensors.safetensors_file import read_header

_MOST_COPIES = 3
"""Projections that share a factor, which each of them stores: q, k and v."""
_FLOAT_BYTES = 4


def with_own_adapters(settings: EngineSettings, media: MediaSpec | None) -> EngineSettings:
    """Return the settings of an engine with room for the adapters of its model in addition to those
    of clients. Raises ModelError if the weights of such an adapter cannot be read."""
    modes = () if media is None else media.modes
    return msgspec.structs.replace(settings, lora=own_limits(settings.lora, modes))


def own_limits(lora: LoraSettings | None, modes: Sequence[MediaMode]) -> LoraSettings | None:
    """Return the limits of adapters with room for those of `modes`; None without any adapter.
    `lora`: the limits of the adapters of clients, None if these are off."""
    folders = [mode.adapter for mode in modes if mode.adapter is not None]
    if not folders:
        return lora
    measured = [_measure(folder) for folder in folders]
    given = LoraSettings(max_adapters=0, max_rank=1, max_bytes=0) if lora is None else lora
    return msgspec.structs.replace(
        given,
        max_adapters=given.max_adapters + len(folders),
        max_rank=max(given.max_rank, *(rank for rank, _ in measured)),
        max_bytes=given.max_bytes + sum(size for _, size in measured),
    )


def _measure(folder: Path) -> tuple[int, int]:
    """Return the largest rank of an adapter, and an upper bound of its bytes in memory."""
    header, _ = read_header(folder / WEIGHTS_NAME)
    ranks = [info.shape[0] for name, info in header.items() if ".lora_A." in name]
    elements = sum(math.prod(info.shape) for info in header.values())
    return max(ranks, default=1), _MOST_COPIES * _FLOAT_BYTES * elements
