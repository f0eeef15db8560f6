"""What stands in place of an `LoRASlotCache` where a model has no LoRA runtime."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import ServiceError
from penstock.config import LoraSettings
from penstock.engine.adapters.slot_cache import LoRASlotCache, unknown_revision
from penstock.engine.types import AdapterSource, AdapterState
from penstock.runtime.adapters import RuntimeAdapters


class NullSlotCache:
    """Has none and takes none. `reason`: what is told to who loads one."""

    has_completions: Final = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def add(self, source: AdapterSource) -> Future[AdapterState]:
        """The future has failed with AdapterRefused `lora_runtime_unavailable`."""
        refused: Future[AdapterState] = Future()
        refused.set_exception(AdapterRefused("lora_runtime_unavailable", self._reason))
        return refused

    def retire(self, revision: str) -> None:
        """It is not here, which is harmless."""

    def states(self) -> tuple[AdapterState, ...]:
        return ()

    def lease(self, revision: str) -> None:
        """Raises InvalidRequest: it is not here."""
        raise unknown_revision()

    def release(self, revision: str, *, entered: bool) -> None:
        raise AssertionError("nobody has a lease")

    def enter(self, revision: str) -> int | None:
        raise AssertionError("nobody has a lease")

    def collect(self) -> dict[str, ServiceError | None]:
        return {}

    def close(self) -> None:
        """There is nothing to end."""


SlotCache = LoRASlotCache | NullSlotCache


def slot_cache_for(
    runtime: RuntimeAdapters | None,
    limits: LoraSettings | None,
    wake: Callable[[], None],
    reason: str,
) -> SlotCache:
    """What an engine has for adapters. `runtime` or `limits` None: nothing, for this `reason`."""
    if runtime is None or limits is None:
        return NullSlotCache(reason)
    return LoRASlotCache(runtime, limits, wake)
