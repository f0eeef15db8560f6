"""Applies the modes of a model to requests: adapters for images or recordings, and other
encodings of media beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import InvalidRequest, ModelError
from penstock.engine.adapters.null_slot_cache import SlotCache
from penstock.engine.adapters.slot_cache import unknown_revision
from penstock.engine.types import AdapterSource, AdapterState, MediaItem, TokenRequest
from penstock.models.towers.tower import MediaMode

_OWN: Final = "own:"
"""Precedes the kind in the revisions of a model's own adapters. Revisions of clients are hashes."""


@dataclass(frozen=True, slots=True)
class RequestModes:
    """The modes of a model, see `MediaSpec.modes`."""

    all: tuple[MediaMode, ...] = ()

    def load(self, cache: SlotCache, woken_by: Callable[[Callable[[], None]], None]) -> None:
        """Load the adapters and return when all are in memory, where they stay.

        `woken_by`: sets the function that another thread calls when `cache` has something to do.
        Raises ModelError if an adapter cannot be used.
        """
        ready = threading.Event()
        woken_by(ready.set)
        sources = [source for mode in self.all for source in _sources(mode)]
        loads = [cache.add(source) for source in sources]
        while not all(load.done() for load in loads):
            ready.wait()
            ready.clear()
            cache.collect()
        for source, load in zip(sources, loads, strict=True):
            try:
                load.result()
            except AdapterRefused as error:
                raise ModelError(f"{source.folder}: {error}") from None

    def applied(self, request: TokenRequest) -> TokenRequest:
        """Return the request with the changes of its mode. Raises InvalidRequest if it names an
        adapter in addition to that of its media, or an adapter of the model."""
        if request.adapter.startswith(_OWN):
            raise unknown_revision()
        kinds = {item.media.kind for item in request.media}
        mode = next((one for one in self.all if one.kind in kinds), None)
        if mode is None:
            return request
        adapter = request.adapter
        for source in _sources(mode):
            if adapter:
                raise InvalidRequest(
                    f"the model uses an adapter of its own for requests with {mode.kind};"
                    " leave `adapter` out",
                    field="adapter",
                    code="unsupported_value",
                )
            adapter = source.revision
        media = tuple(_encoded_for(item, mode) for item in request.media)
        return msgspec.structs.replace(request, adapter=adapter, media=media)


def client_states(states: Sequence[AdapterState]) -> tuple[AdapterState, ...]:
    """Return the states of the adapters that do not belong to the model."""
    return tuple(state for state in states if not state.revision.startswith(_OWN))


def _sources(mode: MediaMode) -> tuple[AdapterSource, ...]:
    if mode.adapter is None:
        return ()
    return (AdapterSource(_OWN + mode.kind, str(mode.adapter), pinned=True),)


def _encoded_for(item: MediaItem, mode: MediaMode) -> MediaItem:
    """Return an item with the number that the mode appends to its layout. Its digest changes,
    because its rows do."""
    number = dict(mode.layouts).get(item.media.kind)
    if number is None:
        return item
    media = msgspec.structs.replace(item.media, layout=(*item.media.layout, number))
    digest = blake2b(item.digest + b"%d" % number, digest_size=len(item.digest)).digest()
    return msgspec.structs.replace(item, media=media, digest=digest)
