"""The interface between tuning and a device: sizes, and a runtime whose speed is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.mebibytes import MIB
from penstock.runtime.protocol import Runtime
from penstock.tune.types import MemoryEstimate

Values = Literal["stored", "random"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes for which memory is planned.

    - `context`: most tokens of a sequence.
    - `rows`: most sequences of a step.
    - `cache_tokens`: tokens for which the KV cache has room.
    """

    context: int
    rows: int
    cache_tokens: int


class Machine(Protocol):
    """A device of this machine."""

    @property
    def backend(self) -> Literal["cpu", "cuda"]: ...

    @property
    def device(self) -> str:
        """The value of the setting `device`."""

    @property
    def total_bytes(self) -> int:
        """The memory of the device."""

    @property
    def available_bytes(self) -> int:
        """The memory that an engine may use, also if another engine uses it now."""

    @property
    def free_bytes(self) -> int:
        """The memory that a measurement may use now."""

    @property
    def cache_dtypes(self) -> tuple[str, ...]:
        """The values of the setting `kv_cache_dtype` worth a comparison, the default first."""

    @property
    def default_rows(self) -> int:
        """The default of the setting `max_num_seqs`."""

    def check(self, settings: EngineSettings) -> None:
        """Raise ModelError for settings that the device does not support."""

    def open(self, files: ModelFiles, settings: EngineSettings, values: Values) -> LoadedModel:
        """Open a model that generates text. Raises ModelError."""

    def cache_token_bytes(self, model: LoadedModel, settings: EngineSettings) -> int:
        """Return the bytes of a token in the KV cache of all layers."""

    def weight_bytes(self, model: LoadedModel, files: ModelFiles, settings: EngineSettings) -> int:
        """Return the bytes of the packed weights, without towers."""

    def memory(
        self, model: LoadedModel, weight_bytes: int, settings: EngineSettings
    ) -> MemoryEstimate:
        """Return the memory that an engine with these settings plans, whether it fits or not.
        `weight_bytes`: from the method of this name."""

    def start(self, model: LoadedModel, settings: EngineSettings) -> Runtime:
        """Return a runtime whose KV cache has its memory. Raises ModelError."""


def cache_mb(token_bytes: int, sizes: Sizes, block_size: int) -> int | None:
    """Return the setting `kv_cache_memory_mb` for a cache of these sizes; None without a cache."""
    if not token_bytes:
        return None
    blocks = -(-max(sizes.cache_tokens, sizes.context) // block_size)
    return -(-(blocks + 1) * block_size * token_bytes // MIB)  # a GPU keeps one block for padding
