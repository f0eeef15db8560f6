"""The adapters of a model as an API process knows them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from penstock.adapters.registry import LoadedAdapter
from penstock.base.errors import InvalidRequest
from penstock.config import LoraSettings
from penstock.dialog import AdapterRevision

MAX_SHOWN_CHARS: Final = 80
NOT_FOUND: Final = "adapter_not_found"


class AdapterView:
    """The aliases of one model.

    - `refresh`: returns after all earlier changes have been applied, which may require a round trip
      to another process.
    - `limits`: the model's LoRA settings.
    """

    def __init__(
        self,
        refresh: Callable[[], Awaitable[None]] | None = None,
        limits: LoraSettings | None = None,
    ) -> None:
        self.limits = limits or LoraSettings()
        self._refresh = refresh
        self._aliases: dict[str, LoadedAdapter] | None = None

    @property
    def available(self) -> bool:
        """Whether the model supports loading adapters at run time."""
        return self._aliases is not None

    @property
    def all(self) -> tuple[LoadedAdapter, ...]:
        """All aliases, in the order in which they were first loaded."""
        return tuple(self._aliases.values()) if self._aliases is not None else ()

    def apply(self, adapters: tuple[LoadedAdapter, ...] | None) -> None:
        """Replace all aliases. `adapters`: None: the model does not support loading adapters."""
        self._aliases = None if adapters is None else {a.alias: a for a in adapters}

    def resolve(self, wanted: str | AdapterRevision) -> str:
        """Return the revision that a request names, by alias or directly. Only the engine knows
        whether a directly named revision exists. Raises InvalidRequest: `lora_runtime_unavailable`,
        `adapter_not_found`."""
        field = "adapter" if isinstance(wanted, str) else "adapter.generation"
        if self._aliases is None:
            raise InvalidRequest(
                "the model has no dynamic LoRA runtime; leave `adapter` out",
                field=field,
                code="lora_runtime_unavailable",
            )
        if isinstance(wanted, AdapterRevision):
            return wanted.revision
        adapter = self._aliases.get(wanted.strip())
        if adapter is None:
            raise not_found(wanted)
        return adapter.revision

    async def resolve_again(self, wanted: str | AdapterRevision, refused: str) -> str:
        """Return the revision that a request names, after the engine has refused the revision
        `refused`: the alias may have been replaced in the meantime. Raises InvalidRequest as
        `resolve` does."""
        if self._refresh is not None:
            await self._refresh()
        revision = self.resolve(wanted)
        if revision == refused:
            raise not_found(wanted)
        return revision


def not_found(wanted: str | AdapterRevision) -> InvalidRequest:
    """Create the error for a request that names an unknown adapter."""
    if isinstance(wanted, AdapterRevision):
        return InvalidRequest(
            "adapter.generation names no resident generation of this model",
            field="adapter.generation",
            code=NOT_FOUND,
        )
    shown = wanted if len(wanted) <= MAX_SHOWN_CHARS else wanted[:MAX_SHOWN_CHARS] + "..."
    return InvalidRequest(f"the model has no adapter '{shown}'", field="adapter", code=NOT_FOUND)
