"""Finds an adapter that the operator names: a folder, or `owner/name` on the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.peft_config import CONFIG_NAME, WEIGHTS_NAME
from penstock.base.errors import ModelError
from penstock.models.hub.cache import fetch_into_cache
from penstock.models.hub.hub_access import HubAccess, cached_snapshot
from penstock.models.hub.model_files import path_at

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FILES: Final = (CONFIG_NAME, WEIGHTS_NAME)


def find_adapter(source: str, home: Path, hub: HubAccess) -> str:
    """Return the folder of the adapter `source`. An adapter on the hub is downloaded once into
    `home/models`; an adapter there or in the hub's own cache is found without the network.

    Raises AdapterRefused `adapter_path_not_found` if neither the disk nor the hub has the adapter,
    or if the name is not valid.
    """
    try:
        folder = path_at(source)
    except ModelError as error:
        raise _not_found(str(error)) from None
    if folder is not None:
        return str(folder)
    if HUB_ID.fullmatch(source) is None or ".." in source:
        raise _not_found(f"{source!r} is neither a folder nor a hub id (owner/name)")
    snapshot = cached_snapshot(hub, source)
    if snapshot is not None and all((snapshot / name).exists() for name in FILES):
        return str(snapshot)
    slot = f"adapter--{source.replace('/', '--')}"
    try:
        return str(fetch_into_cache(home, slot, lambda partial: _fetch(hub, source, partial)))
    except ModelError as error:
        raise _not_found(f"{source} is not a folder, and as a hub id: {error}") from None


def _fetch(hub: HubAccess, repository: str, partial: Path) -> None:
    # Imported here: an adapter on disk needs no HTTP client, whose import takes 0.1 s.
    from penstock.models.hub.hub import Revision, fetch_files

    fetch_files(Revision(hub, repository), FILES, partial)


def _not_found(why: str) -> AdapterRefused:
    return AdapterRefused("adapter_path_not_found", why, field="lora_path")
