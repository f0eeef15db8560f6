"""Commands beside a running server: they name it, and do not delete its model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.server_process import (
    ServerProcess,
    serving_process,
    write_servable_model,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_servable_model(tmp_path_factory.mktemp("model") / "small")


def penstock(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def test_a_second_server_on_the_port_names_the_first(model: str) -> None:
    with serving_process(model) as server:
        server.wait_ready()
        port = server.url.rpartition(":")[2]
        refused = penstock("serve", model, "--port", port)
    assert (refused.returncode, refused.stdout) == (1, "")
    said = refused.stderr
    assert f"port {port} is in use by process {server.process.pid} (" in said
    assert f"a Penstock server with {Path(model).name}: use http://127.0.0.1:{port}" in said
    assert f"kill {server.process.pid}" in said and said.count("\n") == 1


def test_with_json_a_server_prints_one_document(model: str) -> None:
    with serving_process(model, "--json") as server:
        server.wait_ready()
        (line,) = server.said
        said = json.loads(line)
    assert said["url"] == server.url.partition(" ")[0] and said["pid"] == server.process.pid
    assert [(m["id"], m["loaded"]) for m in said["models"]] == [(Path(model).name, True)]


def test_the_model_of_a_running_server_is_not_removed(model: str, tmp_path: Path) -> None:
    home = {"PENSTOCK_HOME": str(tmp_path)}
    cached = tmp_path / "models" / "who--what"
    shutil.copytree(model, cached)
    server = ServerProcess(tmp_path, "who/what")
    try:
        server.wait_ready()
        refused = penstock("cache", "remove", "who/what", "--yes", **home)
    finally:
        server.interrupt()
        server.wait_ended()
    assert refused.returncode == 1 and cached.exists()
    assert f"in use by process {server.process.pid} (" in refused.stderr
    removed = penstock("cache", "remove", "who/what", "--yes", **home)
    assert removed.returncode == 0 and not cached.exists()
