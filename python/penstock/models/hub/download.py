"""HTTP downloads that are resumed after an interruption, checked against a hash and report
progress."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from penstock.base.errors import ModelError
from penstock.models.hub.digests import Digest, file_digest
from penstock.models.hub.progress import DownloadProgress, no_progress

ATTEMPTS = 5
TIMEOUT = httpx.Timeout(30.0, connect=15.0)


class DownloadRefused(ModelError):
    """The server refused to send a file. `status`: the HTTP status of its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def download(
    client: httpx.Client,
    url: str,
    target: Path,
    digest: Digest | None,
    progress: DownloadProgress = no_progress,
) -> None:
    """Download `url` to `target`, resuming from `<target>.part` if it exists. An existing or
    resumed file with a wrong hash is downloaded again, because it belongs to another revision.

    Raises ModelError if the server refuses, does not answer, or sends content with a wrong hash.
    Such content is deleted.
    """
    if target.exists():
        if _is_right(target, digest):
            return
        target.unlink()
    part = target.with_name(target.name + ".part")
    resumed = part.exists()
    _fetch(client, url, part, progress)
    if resumed and not _is_right(part, digest):
        part.unlink()
        _fetch(client, url, part, progress)
    if digest is not None and not _is_right(part, digest):
        part.unlink()
        raise ModelError(f"{_shown(url)}: the {digest.algorithm} of the content is wrong")
    publish(part, target)


def _is_right(path: Path, digest: Digest | None) -> bool:
    return digest is None or file_digest(path, digest) == digest.hexdigest


def _fetch(client: httpx.Client, url: str, part: Path, progress: DownloadProgress) -> None:
    """Download the missing rest of `part`, retrying after each interruption. Raises ModelError
    after ATTEMPTS consecutive requests without a new byte."""
    most, vain = _size_of(part), 0
    while True:
        try:
            _continue(client, url, part, progress)
            return
        except httpx.HTTPError as error:
            size = _size_of(part)
            most, vain = (size, 0) if size > most else (most, vain + 1)
            if vain == ATTEMPTS:
                raise ModelError(f"{_shown(url)}: {_reason(error)}") from None


def _size_of(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def publish(part: Path, target: Path) -> None:
    """Flush the checked file `part` to disk, then rename it to `target`."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(target)


def _continue(client: httpx.Client, url: str, part: Path, progress: DownloadProgress) -> None:
    """Send one HTTP request for the missing rest of `part` and append the response to it."""
    done = _size_of(part)
    # identity: byte ranges of a compressed response would not match the file
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={done}-"} if done else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:  # `part` is complete, or longer than the file
            if _length_in_range(response) != done:
                part.unlink()
                raise httpx.ReadError("the file has changed")
            return
        if response.status_code == 200:
            done = 0  # the server does not resume
        elif response.status_code != 206 or _start_of_range(response) != done:
            raise refusal(response)
        length = response.headers.get("content-length")
        total = done + int(length) if length and length.isdigit() else None
        with part.open("ab" if done else "wb") as file:
            for chunk in response.iter_raw():
                file.write(chunk)
                done += len(chunk)
                progress(part.stem, done, total)


def _start_of_range(response: httpx.Response) -> int | None:
    """Parse `content-range: bytes 100-199/200` -> 100."""
    start = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(start) if start.isdigit() else None


def _length_in_range(response: httpx.Response) -> int | None:
    """Parse `content-range: bytes */200` -> 200."""
    length = response.headers.get("content-range", "").rpartition("/")[2]
    return int(length) if length.isdigit() else None


def refusal(response: httpx.Response) -> DownloadRefused:
    """Create the error for a response with an unexpected HTTP status."""
    url = _shown(str(response.request.url))
    status = response.status_code
    return DownloadRefused(f"{url}: HTTP {status} {response.reason_phrase}", status)


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _shown(url: str) -> str:
    """Return `url` without credentials and query, for an error message."""
    parsed = httpx.URL(url)
    return str(parsed.copy_with(username=None, password=None, query=None))
