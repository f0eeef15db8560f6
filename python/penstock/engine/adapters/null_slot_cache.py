"""A slot cache without slots, for models without a LoRA runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import ServiceError
from penstock.config import LoraSettings
from penstock.engine.adapters.slot_cache import LoRASlotCache, unknown_revision
from penstock.engine.types import AdapterSource, AdapterState
from penstock.kernels.lora_slots import PackedAdapter
from penstock.runtime.adapters import RuntimeAdapters


class NullSlotCache:
    """The null object of `LoRASlotCache`: it refuses every load. `reason`: the error message."""

    has_completions: Final = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def add(self, source: AdapterSource) -> Future[AdapterState]:
        """Refuse a load: return a future that has failed with AdapterRefused
        `lora_runtime_unavailable`."""
        refused: Future[AdapterState] = Future()
        refused.set_exception(AdapterRefused("lora_runtime_unavailable", self._reason))
        return refused

    def retire(self, revision: str) -> None:
        """Do nothing, because no revision is registered."""

    def states(self) -> tuple[AdapterState, ...]:
        return ()

    def lease(self, revision: str) -> None:
        """Refuse a lease, because no revision is registered. Always raises InvalidRequest."""
        raise unknown_revision()

    def release(self, revision: str, *, entered: bool) -> None:
        raise AssertionError("there are no leases")

    def enter(self, revision: str) -> int | None:
        raise AssertionError("there are no leases")

    def collect(self) -> dict[str, ServiceError | None]:
        return {}

    def resident(self) -> tuple[AdapterSource, ...]:
        return ()

    def switch(self, runtime: RuntimeAdapters | None, packed: Mapping[str, PackedAdapter]) -> bool:
        """Do nothing, because there are no slots."""
        return True

    def close(self) -> None:
        """Do nothing, because there is no reader thread."""


SlotCache = LoRASlotCache | NullSlotCache


def slot_cache_for(
    runtime: RuntimeAdapters | None,
    limits: LoraSettings | None,
    wake: Callable[[], None],
    reason: str,
) -> SlotCache:
    """Return the slot cache of an engine: a `NullSlotCache` with `reason` if `runtime` or `limits`
    is None, else a `LoRASlotCache`. `wake`: see `LoRASlotCache`."""
    if runtime is None or limits is None:
        return NullSlotCache(reason)
    return LoRASlotCache(runtime, limits, wake)
