"""The memory of the media of a model: its towers, and the encoded items that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.config import CPU_STEP_SIZES, EngineSettings
from penstock.models.towers.tower import LoadedTower, MediaSpec


@dataclass(frozen=True, slots=True)
class MediaMemory:
    """The memory of a model's media, in bytes.

    `tower_bytes`: weights of the towers.
    `scratch_bytes`: activations while a tower encodes the largest item.
    `cache_bytes`: encoded items.
    `row_bytes`: buffers of a step for encoded rows.
    """

    tower_bytes: int = 0
    scratch_bytes: int = 0
    cache_bytes: int = 0
    row_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.tower_bytes + self.scratch_bytes + self.cache_bytes + self.row_bytes


NO_MEDIA: Final = MediaMemory()


def media_memory(
    width: int,
    media: MediaSpec | None,
    towers: Iterable[LoadedTower],
    settings: EngineSettings,
) -> MediaMemory:
    """Return the memory of the towers of a model: 0 for a model that reads only text. `width`:
    numbers per embedding."""
    if media is None:
        return NO_MEDIA
    step_tokens = settings.step_sizes(CPU_STEP_SIZES).max_num_batched_tokens
    return MediaMemory(
        tower_bytes=sum(tower.weight_bytes for tower in towers),
        scratch_bytes=max((tower.scratch_bytes() for tower in media.towers), default=0),
        cache_bytes=settings.encoder_cache_mb << 20,
        row_bytes=4 * step_tokens * width,
    )
