"""Finds the greatest context that fits in the memory of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.loader.model_loader import LoadedModel
from penstock.tune.machine import Machine, Sizes, cache_mb
from penstock.tune.types import MemoryEstimate

LEAST_CONTEXT = 16
ROW_TOKENS = 1024
"""Tokens of the KV cache for each row beyond those for which the context is planned, as the engine
plans by default."""


@dataclass(frozen=True)
class Fitting:
    """The memory of a model with one type of weights and one of the KV cache.

    `batch`: the number of sequences that shall have the whole context.
    """

    machine: Machine
    model: LoadedModel
    weight_bytes: int
    settings: EngineSettings
    batch: int

    def settings_for(self, sizes: Sizes) -> EngineSettings:
        """Return the settings of an engine with these sizes."""
        token_bytes = self.machine.cache_token_bytes(self.model, self.settings)
        return msgspec.structs.replace(
            self.settings,
            max_model_len=sizes.context,
            max_num_seqs=sizes.rows,
            kv_cache_memory_mb=cache_mb(token_bytes, sizes, self.settings.block_size),
        )

    def memory(self, sizes: Sizes) -> MemoryEstimate:
        """Return the memory of an engine with these sizes."""
        settings = self.settings_for(sizes)
        return self.machine.memory(self.model, self.weight_bytes, settings)

    def fits(self, sizes: Sizes) -> bool:
        """Return whether an engine with these sizes exists and fits."""
        try:
            memory = self.memory(sizes)
        except ModelError:
            return False
        return memory.total_bytes <= self.machine.available_bytes

    def sizes(self, context: int, rows: int | None = None) -> Sizes:
        """Return the sizes for `batch` sequences of `context` tokens, and `rows` in all."""
        rows = self.batch if rows is None else rows
        return Sizes(context, rows, max(self.batch * context, rows * ROW_TOKENS))

    def greatest_context(self) -> int:
        """Return the most tokens of each of `batch` sequences, at most the model's; 0 if not even
        LEAST_CONTEXT fit."""
        most = self.model.spec.max_model_len
        return greatest(min(LEAST_CONTEXT, most), most, lambda n: self.fits(self._bare(n)))

    def most_rows(self, context: int) -> int:
        """Return the most rows up to the default of the device that fit beside `batch` sequences of
        `context` tokens; at least `batch`."""
        most = max(self.machine.default_rows, self.batch)
        found = greatest(self.batch, most, lambda rows: self.fits(self.sizes(context, rows)))
        return max(found, self.batch)

    def fits_context(self, context: int) -> bool:
        """Return whether `batch` sequences of `context` tokens fit."""
        return self.fits(self._bare(context))

    def _bare(self, context: int) -> Sizes:
        return Sizes(context, self.batch, self.batch * context)


def greatest(least: int, most: int, holds: Callable[[int], bool]) -> int:
    """Return the greatest number from `least` to `most` for which `holds`, which is true up to some
    number; 0 if it is false for `least`."""
    if most < least or not holds(least):
        return 0
    if holds(most):
        return most
    low, high = least, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
