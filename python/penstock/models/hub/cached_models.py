"""Lists and removes downloaded models: those in `home/models`, and those in the cache of the
Hugging Face hub's own clients, which other programs share."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.models.hub.digests import hashes_path
from penstock.models.hub.hub_access import HubAccess, cached_snapshot
from penstock.models.hub.model_files import FilesKind
from penstock.models.hub.sources import files_at

Place: TypeAlias = Literal["penstock", "hub cache"]
CachedKind: TypeAlias = FilesKind | Literal["unfinished", "other"]

PARTIAL: Final = ".partial"
HUB_PREFIX: Final = "models--"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A downloaded model.

    - `name`: the name that serves it: of the catalogue, or of the hub.
    - `place`: "penstock": `home/models`; "hub cache": the hub's own cache.
    - `kind`: "unfinished" is an interrupted download, "other" no model that can be served.
    - `folder`: its folder, with all its files.
    - `model`: the folder of the files that are served; in the hub's cache these are links.
    - `last_used_s`: the Unix time of the last reading or writing of a file. Linux may delay the
      time of a reading by a day.
    """

    name: str
    place: Place
    kind: CachedKind
    folder: Path
    model: Path
    size_bytes: int
    last_used_s: float


def cached_models(home: Path, hub: HubAccess) -> list[CachedModel]:
    """Return the downloaded models, in the order of their names."""
    found = [*_own_models(home / "models"), *_hub_models(hub)]
    return sorted(found, key=lambda model: (model.name.lower(), model.place))


def remove_model(model: CachedModel) -> None:
    """Delete the files of a model. Raises ModelError if a file cannot be deleted."""
    try:
        # Renamed first, so that an interruption leaves no model that only seems complete.
        doomed = model.folder
        if model.place == "penstock" and model.kind != "unfinished":
            doomed = model.folder.with_name(model.folder.name + PARTIAL)
            shutil.rmtree(doomed, ignore_errors=True)
            model.folder.rename(doomed)
        shutil.rmtree(doomed)
        if model.place == "penstock":
            hashes_path(model.folder).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{model.folder}: cannot be deleted: {error.strerror}") from None


def files_in(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, without links, in the order of their
    paths."""
    found = (path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
    return sorted(found)


def _own_models(root: Path) -> Iterator[CachedModel]:
    for folder in _folders(root):
        unfinished = folder.name.endswith(PARTIAL)
        name = folder.name.removesuffix(PARTIAL).replace("--", "/")
        kind: CachedKind = "unfinished" if unfinished else _kind(folder)
        yield _described(name, "penstock", kind, folder, folder)


def _hub_models(hub: HubAccess) -> Iterator[CachedModel]:
    if hub.cache is None:
        return
    for folder in _folders(hub.cache):
        if not folder.name.startswith(HUB_PREFIX):
            continue
        name = folder.name.removeprefix(HUB_PREFIX).replace("--", "/")
        snapshot = cached_snapshot(hub, name)
        kind: CachedKind = "unfinished" if snapshot is None else _kind(snapshot)
        yield _described(name, "hub cache", kind, folder, snapshot or folder)


def _described(name: str, place: Place, kind: CachedKind, folder: Path, model: Path) -> CachedModel:
    states = [path.stat() for path in files_in(folder)]
    used = max((max(state.st_atime, state.st_mtime) for state in states), default=0.0)
    size = sum(state.st_size for state in states)
    return CachedModel(name, place, kind, folder, model, size, used)


def _folders(root: Path) -> Iterable[Path]:
    if not root.is_dir():
        return ()
    return (path for path in root.iterdir() if path.is_dir() and not path.is_symlink())


def _kind(folder: Path) -> CachedKind:
    try:
        return files_at(folder, folder.name).kind
    except ModelError:
        return "other"
