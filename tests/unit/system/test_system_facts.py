"""Facts about the machine and the build, and its checks."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.config import read_environment
from penstock.system.checks import EXTRAS, check_extra, check_gpu_kernels
from penstock.system.facts import read_cpu, system_info

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"

TWO_CORES = """processor\t: 0
model name\t: Some CPU @ 2.0GHz
flags\t\t: fpu avx avx2 avx512f fma
physical id\t: 0
core id\t\t: 3

processor\t: 1
model name\t: Some CPU @ 2.0GHz
flags\t\t: fpu
physical id\t: 0
core id\t\t: 3
"""


def test_logical_and_physical_cores_are_counted(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(TWO_CORES)
    cpu = read_cpu(path)
    assert (cpu.brand, cpu.logical_cores, cpu.physical_cores) == ("Some CPU @ 2.0GHz", 2, 1)
    assert {"avx", "avx512f", "fma"} <= cpu.flags


def test_missing_cpu_entries_have_low_defaults(tmp_path):
    cpu = read_cpu(tmp_path / "missing")
    assert cpu.flags == frozenset() and cpu.physical_cores == cpu.logical_cores >= 1


def test_info_describes_machine_build_and_cache():
    info = system_info(read_environment({"HOME": "/home/u", "HF_HOME": "/hub"}))
    assert info.memory.total_bytes >= info.memory.available_bytes > 0
    assert info.devices[0].kind == "cpu" and info.hf_cache_path == "/hub/hub"
    assert info.build.version == "0.9.1" and not info.build.cuda


def test_installed_gpu_kernels_are_counted(tmp_path, monkeypatch):
    assert "none are installed" in check_gpu_kernels().message
    package = tmp_path / "penstock_cuda13"
    package.mkdir()
    (package / "__init__.py").touch()
    with zipfile.ZipFile(package / "kernels_sm_90a.zip", "w") as archive:
        archive.writestr("index.json", '{"target": "sm_90a", "kernels": [{}, {}]}')
    (package / "kernels_sm_80.zip").write_bytes(b"broken")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert check_gpu_kernels().message == (
        "kernels_sm_80.zip cannot be read; 2 compiled kernels for sm_90a"
    )


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_the_one_of_the_package(extra):
    listed = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"][extra]
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in listed}
    assert set(EXTRAS[extra]) == names - {"penstock"}


def test_packages_of_an_extra_are_named_with_version_or_command(monkeypatch):
    monkeypatch.setitem(EXTRAS, "images", ("torch", "numpy"))
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy")]
    assert check_extra("images").message == f"image models: {', '.join(versions)}"
    monkeypatch.setitem(EXTRAS, "images", ("torch", "no-such-package"))
    missing = check_extra("images")
    assert missing.status == "ok"
    assert missing.message == (
        "image models: need no-such-package (pip install 'penstock[images]')"
    )


async def test_routes_return_facts_and_checks():
    from tests.support.servers.http_server import serving

    async with serving() as server:
        info = (await server.http.get("/v1/system/info")).json()
        answer = await server.http.post("/v1/system/doctor")
    assert answer.status_code == 200
    diagnosis = json.loads(answer.content)
    assert diagnosis["system"]["cpu"] == info["cpu"]
    names = [check["name"] for check in diagnosis["checks"]]
    assert {"cpu_extensions", "memory", "disk_space"} <= set(names) and "port" not in names
    assert {check["status"] for check in diagnosis["checks"]} <= {"ok", "warn", "error"}
