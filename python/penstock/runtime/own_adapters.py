"""Makes room in an engine for the adapters that belong to its model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_config import WEIGHTS_NAME
from penstock.adapters.tensor_keys import factor_key
from penstock.base.errors import ModelError
from penstock.config import EngineSettings, LoraSettings
from penstock.models.decoder.lora_targets import count_parts
from penstock.models.towers.tower import MediaMode, MediaSpec
from penstock.quant.safetensors.safetensors_file import read_header

_RANK_UNIT: Final = 16
"""Kernels store factors with a multiple of this rank."""


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
    own_bytes = sum(size for _, size in measured)
    given = LoraSettings(max_adapters=0, max_rank=1, max_bytes=0) if lora is None else lora
    return msgspec.structs.replace(
        given,
        max_adapters=given.max_adapters + len(folders),
        max_rank=max(given.max_rank, *(rank for rank, _ in measured)),
        max_bytes=given.max_bytes + own_bytes,
        reserved_bytes=own_bytes,
    )


def _measure(folder: Path) -> tuple[int, int]:
    """Return the largest rank of an adapter, and its bytes in memory if its elements keep their
    size. Each of several projections with a common factor stores the factor."""
    header, _ = read_header(folder / WEIGHTS_NAME)
    rank, size_bytes = 1, 0
    for name, info in header.items():
        try:
            key = factor_key(name)
        except AdapterRefused as error:
            raise ModelError(f"{folder}: {error}") from None
        own = info.shape[0 if key.side == "A" else 1]
        copies = count_parts(key.name) if key.side == "A" else 1
        stored = -(-own // _RANK_UNIT) * _RANK_UNIT
        size_bytes += copies * info.size_bytes // own * stored
        rank = max(rank, own)
    return rank, size_bytes
