"""Start and stop of the server process: it checks everything before it reports that it is ready,
and logs what a signal does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.servers.server_process import serving_process, write_servable_model
from tests.support.small_filesystems import mounted_disk

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_servable_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "full", 64 * 1024) as place:
        filler = os.open(place / "filler", os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(filler, bytes(4096))
        except OSError:
            os.close(filler)
        yield place


def refused(model: str, home: Path, *options: str) -> str:
    """Return the error line of a server that exits before it is ready."""
    with serving_process(model, *options, home=home) as server:
        assert server.wait_ended() == 1
    assert not [line for line in server.said if "ready" in line]
    line = server.warned[-1]
    assert line.startswith("penstock: ") and not any("Traceback" in w for w in server.warned)
    return line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_start_fails_if_the_database_cannot_be_created(
    model: str, tmp_path: Path, workers: str
) -> None:
    (tmp_path / "penstock.db").mkdir()
    line = refused(model, tmp_path, "--workers", workers)
    assert f"[store] cannot be opened: the database {tmp_path / 'penstock.db'}: " in line
    assert "--store" in line and "PENSTOCK_HOME" in line


def test_start_fails_if_home_cannot_be_created(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    assert f"{home / 'penstock.db'}: Not a directory; make it" in refused(model, home)


def test_start_fails_on_a_full_disk(model: str, full_disk: Path) -> None:
    assert f"the database {full_disk / 'penstock.db'}: " in refused(model, full_disk)


def test_start_fails_if_the_blobs_folder_is_not_writable(model: str, tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("")
    line = refused(model, tmp_path)
    assert f"the folder {tmp_path / 'blobs'}: " in line and "--blobs" in line


def test_start_fails_if_the_adapters_folder_is_not_writable(model: str, tmp_path: Path) -> None:
    (tmp_path / "adapters").write_text("")
    line = refused(model, tmp_path, "--enable-lora")
    assert f"lora: {tmp_path / 'adapters'} cannot be used: File exists; make it" in line


def test_restart_fails_if_the_store_has_become_unusable(model: str, tmp_path: Path) -> None:
    with serving_process(model, home=tmp_path) as server:
        server.wait_ready()
    (tmp_path / "penstock.db").write_bytes(b"text " * 1000)
    (tmp_path / "penstock.db-wal").unlink(missing_ok=True)
    assert "penstock.db: file is not a database; " in refused(model, tmp_path)


def test_store_is_available_when_the_server_is_ready(model: str, tmp_path: Path) -> None:
    with serving_process(model, home=tmp_path) as server:
        server.wait_ready()
        assert (tmp_path / "penstock.db").stat().st_size > 0
        assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]


def test_ready_line_names_the_listening_address_and_a_usable_one(model: str) -> None:
    with serving_process(model) as server:
        line = server.wait_ready()
        port = int(server.url.rpartition(":")[2])
        assert f"ready on http://127.0.0.1:{port} (listening on 0.0.0.0:{port}, model " in line
        assert httpx.get(f"{server.url}/health").status_code == 200
    with serving_process(model, "--host", "127.0.0.1") as server:
        assert "listening" not in server.wait_ready()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_first_interrupt_drains_and_second_is_not_a_client_disconnect(
    model: str, workers: str
) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "n": 16, "ignore_eos": True, "stream": True}
    with serving_process(model, "--workers", workers) as server:
        server.wait_ready()
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer,
        ):
            for number, _ in enumerate(answer.iter_lines()):
                if number == 0:
                    server.interrupt()
                    server.wait_warned("stopping: open requests have 30 s to finish; a second")
                    server.interrupt()
        assert server.wait_ended() == 0
    ends = [line for line in server.warned if "request completed" in line]
    assert len(ends) == 1 and "outcome=server_stopped" in ends[0]
