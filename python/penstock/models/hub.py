"""The model hub over plain HTTPS: what a repository holds, and the files that a model needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec

from penstock.base.errors import ModelError
from penstock.models.download import (
    TIMEOUT,
    Digest,
    DownloadProgress,
    download,
    no_progress,
    refusal,
)
from penstock.models.hub_access import HubAccess

MAX_LISTING_BYTES = 16 << 20
FOLDER_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|chat_template)\.json"
    r"|chat_template\.jinja|model\.safetensors(\.index\.json)?|model-\d+-of-\d+\.safetensors"
)
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class _Lfs(msgspec.Struct):
    oid: str


class _Entry(msgspec.Struct):
    type: str
    path: str
    oid: str = ""
    lfs: _Lfs | None = None


def fetch_repository(
    access: HubAccess,
    repository: str,
    revision: str,
    file: str | None,
    target: Path,
    progress: DownloadProgress = no_progress,
    sha256: str | None = None,
) -> None:
    """Download one file, or (None) those of a safetensors folder, into `target`.

    They are checked against the hub's hashes, a single file against `sha256` if given.
    Raises ModelError where the hub does not answer or has no such files."""
    if file is None:
        fetch_files(access, repository, revision, FOLDER_FILES, ("config.json",), target, progress)
        return
    names = re.compile(re.escape(file))
    fetch_files(access, repository, revision, names, (file,), target, progress, sha256)


def fetch_files(
    access: HubAccess,
    repository: str,
    revision: str,
    names: re.Pattern[str],
    needed: Sequence[str],
    target: Path,
    progress: DownloadProgress = no_progress,
    sha256: str | None = None,
) -> None:
    """Download the files of the repository's top folder that `names` matches into `target`, and
    check them against the hub's hashes, or all against `sha256`. Raises ModelError where the hub
    does not answer, or has not all that are `needed`."""
    if access.offline:
        raise ModelError(f"{repository} has not been fetched, and the hub is switched off")
    headers = {"authorization": f"Bearer {access.token}"} if access.token else {}
    with httpx.Client(headers=headers, timeout=TIMEOUT, follow_redirects=True) as client:
        entries = _listing(client, access, repository, revision)
        wanted = [e for e in entries if _is_wanted(e, names)]
        missing = set(needed).difference(entry.path for entry in wanted)
        if missing:
            what = " and ".join(sorted(missing))
            raise ModelError(f"{access.endpoint}/{repository}: {what} not found at {revision}")
        for entry in wanted:
            url = f"{access.endpoint}/{repository}/resolve/{revision}/{entry.path}"
            digest = Digest("sha256", sha256) if sha256 else _digest(entry)
            download(client, url, target / entry.path, digest, progress)


def _listing(
    client: httpx.Client, access: HubAccess, repository: str, revision: str
) -> list[_Entry]:
    url = f"{access.endpoint}/api/models/{repository}/tree/{revision}"
    try:
        response = client.get(url)
    except httpx.HTTPError as error:
        raise ModelError(
            f"{access.endpoint} does not answer, {repository} cannot be fetched: {error};"
            " without a network, name a file or a folder on disk"
        ) from None
    if response.status_code in (401, 403, 404):
        raise ModelError(
            f"{access.endpoint}/{repository}: HTTP {response.status_code}: no such model, or it"
            " needs a token (HF_TOKEN) whose owner has accepted its terms"
        )
    if response.status_code != 200:
        raise refusal(response)
    if len(response.content) > MAX_LISTING_BYTES:
        raise ModelError(f"{url}: a listing of {len(response.content)} bytes")
    try:
        return msgspec.json.decode(response.content, type=list[_Entry])
    except msgspec.MsgspecError as error:
        raise ModelError(f"{url}: not a listing of files: {error}") from None


def _is_wanted(entry: _Entry, names: re.Pattern[str]) -> bool:
    plain = entry.type == "file" and PLAIN_NAME.fullmatch(entry.path)
    return bool(plain and names.fullmatch(entry.path))


def _digest(entry: _Entry) -> Digest:
    """Large files are named by SHA-256, small ones by git's hash of a blob."""
    if entry.lfs is not None:
        return Digest("sha256", entry.lfs.oid)
    return Digest("sha1", entry.oid, git_blob=True)
