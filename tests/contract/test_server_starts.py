"""What a server needs is opened and tried before it says that it is ready."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import serving_process, write_servable_model
from small_disks import mounted_disk

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
    """The line with which a server ends before it is ready."""
    with serving_process(model, *options, home=home) as server:
        assert server.wait_ended() == 1
    assert not [line for line in server.said if "ready" in line]
    line = server.warned[-1]
    assert line.startswith("penstock: ") and not any("Traceback" in w for w in server.warned)
    return line


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_database_that_cannot_be_made_ends_the_start(
    model: str, tmp_path: Path, workers: str
) -> None:
    (tmp_path / "penstock.db").mkdir()
    line = refused(model, tmp_path, "--workers", workers)
    assert f"[store] cannot be opened: the database {tmp_path / 'penstock.db'}: " in line
    assert "--store" in line and "PENSTOCK_HOME" in line


def test_a_home_that_cannot_be_made_ends_the_start(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    assert f"{home / 'penstock.db'}: Not a directory; make it" in refused(model, home)


def test_a_full_disk_ends_the_start(model: str, full_disk: Path) -> None:
    assert f"the database {full_disk / 'penstock.db'}: " in refused(model, full_disk)


def test_a_folder_of_bodies_that_takes_none_ends_the_start(model: str, tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("")
    line = refused(model, tmp_path)
    assert f"the folder {tmp_path / 'blobs'}: " in line and "--blobs" in line


def test_a_folder_of_adapters_that_takes_none_ends_the_start(model: str, tmp_path: Path) -> None:
    (tmp_path / "adapters").write_text("")
    line = refused(model, tmp_path, "--enable-lora")
    assert f"lora: {tmp_path / 'adapters'} cannot be used: File exists; make it" in line


def test_a_store_that_has_become_unusable_ends_the_next_start(model: str, tmp_path: Path) -> None:
    with serving_process(model, home=tmp_path) as server:
        server.wait_ready()
    (tmp_path / "penstock.db").write_bytes(b"text " * 1000)
    (tmp_path / "penstock.db-wal").unlink(missing_ok=True)
    assert "penstock.db: file is not a database; " in refused(model, tmp_path)


def test_a_store_that_can_be_opened_is_there_when_the_server_is_ready(
    model: str, tmp_path: Path
) -> None:
    with serving_process(model, home=tmp_path) as server:
        server.wait_ready()
        assert (tmp_path / "penstock.db").stat().st_size > 0
        assert not [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
