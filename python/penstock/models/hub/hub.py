"""Downloads models from the Hugging Face hub over HTTPS: lists a repository and fetches the files
that a model needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import httpx
import msgspec

from penstock.base.errors import ModelError
from penstock.models.hub.digests import Digest, write_hashes
from penstock.models.hub.download import TIMEOUT, download, refusal
from penstock.models.hub.folder_files import (
    ALWAYS,
    TOOL_TEMPLATE,
    named_files,
    weight_names,
)
from penstock.models.hub.headers import fetch_header
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.media_model_files import (
    KOKORO_FOLDERS,
    KOKORO_MODEL,
    PIPELINE_INDEX,
    component_folders,
    kokoro_repository_files,
    pipeline_files,
)
from penstock.models.hub.mmproj_files import choose_mmproj
from penstock.models.hub.progress import DownloadProgress, no_progress
from penstock.quant.gguf.split_names import split_file_names
from penstock.quant.safetensors.safetensors_file import INDEX_NAME, SINGLE_NAME

MAX_LISTING_BYTES = 16 << 20
SMALL_FILES = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens"
    r"|chat_template|modules|sentence_bert_config|config_sentence_transformers"
    r"|preprocessor_config|video_preprocessor_config|processor_config"
    r"|model\.safetensors\.index)\.json|chat_template\.jinja"
)
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


class RepositoryUnknown(ModelError):
    """The hub has no such repository, shows it only to holders of a token, or does not answer.
    `status`: the HTTP status of its answer, None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class _Lfs(msgspec.Struct):
    oid: str


class _Entry(msgspec.Struct):
    type: str
    path: str
    oid: str = ""
    size: int = 0
    lfs: _Lfs | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a repository on the hub.

    - `access`: the settings of the hub.
    - `repository`: owner/name.
    - `name`: a branch or commit.
    """

    access: HubAccess
    repository: str
    name: str = "main"


def fetch_repository(
    revision: Revision,
    file: str | None,
    target: Path,
    progress: DownloadProgress = no_progress,
    sha256: str | None = None,
) -> None:
    """Download a model into `target`: a GGUF file, or the files of a safetensors folder, of a
    diffusers pipeline or of a Kokoro model.

    `file`: the GGUF file; if it is the first file of a split set, the whole set is downloaded. A
    repository's `mmproj` file is downloaded with it. None: the model is not a GGUF file.
    `sha256`: the hash of `file`; None: files are checked against the hub's hashes.

    Raises ModelError if the hub does not answer or lacks a file.
    """
    if file is not None:
        _fetch_gguf(revision, file, target, progress, sha256)
        return
    with _open(revision, target, progress) as source:
        if PIPELINE_INDEX in source.entries:
            source.fetch((PIPELINE_INDEX,))
            folders = component_folders(target)
            source.enter(folders)
            source.fetch(pipeline_files(source.entries, folders))
            return
        if source.has_folders(KOKORO_FOLDERS):
            source.enter(KOKORO_FOLDERS)
            source.check((KOKORO_MODEL,))
            source.fetch(kokoro_repository_files(source.entries))
            return
        small = [name for name in source.entries if SMALL_FILES.fullmatch(name)]
        weights = () if INDEX_NAME in small else (SINGLE_NAME,)
        source.check((*ALWAYS, *weights))
        source.fetch(small)
        named = named_files(target)
        source.enter({str(PurePosixPath(name).parent) for name in (*named, TOOL_TEMPLATE)})
        optional = (TOOL_TEMPLATE,) if TOOL_TEMPLATE in source.entries else ()
        source.check(named)
        source.fetch((*optional, *named))


def fetch_headers(revision: Revision, file: str | None, target: Path) -> None:
    """Write the configuration of a model into `target`, and its weight files with their headers
    only (`headers`): a GGUF file or split set, or a safetensors folder. `file`: the GGUF file, None
    for a folder. Raises ModelError as `fetch_repository` does."""
    with _open(revision, target, no_progress) as source:
        if file is not None:
            names = split_file_names(file)
            towers = choose_mmproj(source.entries)
            source.check(names)
            source.fetch_headers((*names, *(() if towers in (None, *names) else (towers,))))
            return
        found = (name for name in source.entries if SMALL_FILES.fullmatch(name))
        small = [name for name in found if not name.startswith("tokenizer")]
        source.check(("config.json", *(() if INDEX_NAME in small else (SINGLE_NAME,))))
        source.fetch(small)
        weights = weight_names(target)
        source.check(weights)
        source.fetch_headers(weights)


def fetch_files(
    revision: Revision,
    names: Sequence[str],
    target: Path,
    progress: DownloadProgress = no_progress,
    sha256: str | None = None,
) -> None:
    """Download the files `names`, which are in the repository's top folder, into `target`.
    `sha256`: the hash of each file; None: files are checked against the hub's hashes. Raises
    ModelError if the hub does not answer or lacks a file."""
    with _open(revision, target, progress) as source:
        source.check(names)
        source.fetch(names, sha256)


def _fetch_gguf(
    revision: Revision, file: str, target: Path, progress: DownloadProgress, sha256: str | None
) -> None:
    names = split_file_names(file)
    with _open(revision, target, progress) as source:
        source.check(names)
        source.fetch(names, sha256)
        towers = choose_mmproj(source.entries)
        if towers is not None and towers not in names:
            source.fetch((towers,))


@contextmanager
def _open(revision: Revision, target: Path, progress: DownloadProgress) -> Iterator[_Source]:
    access = revision.access
    if access.offline:
        raise ModelError(f"{revision.repository} has not been downloaded, and the hub is off")
    headers = {"authorization": f"Bearer {access.token}"} if access.token else {}
    with httpx.Client(headers=headers, timeout=TIMEOUT, follow_redirects=True) as client:
        source = _Source(client, revision, target, progress)
        yield source
    source.drop_others()
    write_hashes(target, source.digests)


class _Source:
    """Downloads files of one revision of a repository. `entries`: path -> entry of each file in the
    listed folders; only paths that stay inside `target` are kept. `digests`: path -> hash of each
    downloaded file."""

    def __init__(
        self,
        client: httpx.Client,
        revision: Revision,
        target: Path,
        progress: DownloadProgress,
    ) -> None:
        """List the repository's top folder. Raises ModelError if the hub does not answer or
        refuses."""
        self._client = client
        self._endpoint = revision.access.endpoint
        self._repository = revision.repository
        self._revision = revision.name
        self._target = target
        self._progress = progress
        self._folders: set[str] = set()
        self.entries: dict[str, _Entry] = {}
        self.digests: dict[str, Digest] = {}
        self._list("")

    def enter(self, folders: Iterable[str]) -> None:
        """List the given `folders`, except those that the repository's top folder does not have."""
        for folder in sorted(self._folders.intersection(folders)):
            self._list(folder)

    def has_folders(self, folders: Iterable[str]) -> bool:
        """Return whether the repository's top folder has all these folders."""
        return self._folders.issuperset(folders)

    def check(self, needed: Iterable[str]) -> None:
        """Check that the repository has all `needed` files. Raises ModelError naming the missing
        files."""
        missing = sorted(set(needed).difference(self.entries))
        if not missing:
            return
        found = sorted(name for name in self.entries if name.endswith(".gguf"))
        hint = f"; name one of its GGUF files: {self._repository}/{found[0]}" if found else ""
        others = f" (also {', '.join(found[1:])})" if found[1:] else ""
        raise ModelError(
            f"{self._endpoint}/{self._repository}: {' and '.join(missing)} not found at"
            f" {self._revision}{hint}{others}"
        )

    def fetch(self, names: Iterable[str], sha256: str | None = None) -> None:
        """Download the files `names` and check their hashes: `sha256`, or else the hash in the
        listing."""
        for name in names:
            url = f"{self._endpoint}/{self._repository}/resolve/{self._revision}/{name}"
            digest = Digest("sha256", sha256) if sha256 else _digest(self.entries[name])
            path = self._target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            download(self._client, url, path, digest, self._progress)
            self.digests[name] = digest

    def fetch_headers(self, names: Iterable[str]) -> None:
        """Write the weight files `names` with their headers only."""
        for name in names:
            url = f"{self._endpoint}/{self._repository}/resolve/{self._revision}/{name}"
            entry = self.entries[name]
            fetch_header(self._client, url, self._target / name, entry.size)
            self.digests[name] = _digest(entry)

    def drop_others(self) -> None:
        """Delete all files in the target folder that were not fetched, left by an interrupted
        download of another revision."""
        fetched = {self._target / name for name in self.digests}
        for path in self._target.rglob("*"):
            if path.is_file() and path not in fetched:
                path.unlink()

    def _list(self, folder: str) -> None:
        for entry in self._listing(folder):
            if not all(PLAIN_NAME.fullmatch(part) for part in entry.path.split("/")):
                continue
            if entry.type == "file":
                self.entries[entry.path] = entry
            elif entry.type == "directory":
                self._folders.add(entry.path)

    def _listing(self, folder: str) -> list[_Entry]:
        inside = f"/{folder}" if folder else ""
        url = f"{self._endpoint}/api/models/{self._repository}/tree/{self._revision}{inside}"
        try:
            response = self._client.get(url)
        except httpx.HTTPError as error:
            raise RepositoryUnknown(
                f"{self._endpoint} does not answer, {self._repository} cannot be downloaded:"
                f" {error}; without a network, name a file or a folder on disk"
            ) from None
        if response.status_code in (401, 403, 404):
            raise RepositoryUnknown(
                f"{self._endpoint}/{self._repository}: HTTP {response.status_code}: no such model,"
                " or it needs a token (HF_TOKEN) whose owner has accepted its terms",
                response.status_code,
            )
        if response.status_code != 200:
            raise refusal(response)
        if len(response.content) > MAX_LISTING_BYTES:
            raise ModelError(f"{url}: the listing is too large: {len(response.content)} bytes")
        try:
            return msgspec.json.decode(response.content, type=list[_Entry])
        except msgspec.MsgspecError as error:
            raise ModelError(f"{url}: not a listing of files: {error}") from None


def _digest(entry: _Entry) -> Digest:
    """Return the hash in a file's listing entry: SHA-256 for a large (LFS) file, git's blob hash
    for a small file."""
    if entry.lfs is not None:
        return Digest("sha256", entry.lfs.oid)
    return Digest("sha1", entry.oid, git_blob=True)
