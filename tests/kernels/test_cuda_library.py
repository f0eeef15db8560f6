"""The CUDA library as packaged: built by nvcc, loaded without a driver, and found when
installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.cuda.library import ABI, Library, Unavailable, find_library, open_library
from penstock.kernels.cuda.ops import register
from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine

_ROOT = Path(__file__).parents[2]
_HEADER = _ROOT / "csrc" / "cuda" / "abi.h"
_DRIVER_HEADER = _HEADER.with_name("modules.h")


def _declared() -> set[str]:
    text = _HEADER.read_text() + _DRIVER_HEADER.read_text()
    return set(re.findall(r"^PENSTOCK_EXPORT [^(]*?(penstock_\w+)\(", text, re.M))


def _shared_object(folder: Path, source: str) -> Path:
    """Compile a library from that C source."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (folder / "library.c").write_text(source)
    path = folder / "library.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(path), str(folder / "library.c")], check=True
    )
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built by nvcc."""
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("there is no cmake")
    folder = tmp_path_factory.mktemp("cuda")
    options = ["-DPENSTOCK_CUDA=ON", "-DPENSTOCK_CPU=OFF", "-DPENSTOCK_WERROR=ON"]
    for arguments in (["-S", str(_ROOT), "-B", str(folder), *options], ["--build", str(folder)]):
        done = subprocess.run([cmake, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return folder / "libpenstock_cuda.so"


@pytest.mark.slow
def test_library_is_built_and_loads_without_a_driver(built: Path) -> None:
    library = open_library(built)
    assert isinstance(library, Library) and not library.emulated


@pytest.mark.slow
def test_library_exports_its_abi_and_nothing_else(built: Path) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(built)], check=True, capture_output=True, text=True
    ).stdout
    assert {line.split()[-1] for line in listed.splitlines()} == _declared()


@pytest.mark.slow
def test_library_needs_neither_cuda_nor_torch_nor_python(built: Path) -> None:
    read = subprocess.run(
        ["readelf", "-d", str(built)], check=True, capture_output=True, text=True
    ).stdout
    needed = re.findall(r"NEEDED.*\[(.*?)\]", read)
    assert needed and not [name for name in needed if re.search("cuda|torch|python", name)]


def test_the_number_of_the_abi_is_one_on_both_sides() -> None:
    assert f"#define PENSTOCK_CUDA_ABI {ABI}\n" in _HEADER.read_text()


def test_library_of_another_abi_is_unavailable(tmp_path: Path) -> None:
    path = _shared_object(tmp_path, f"int penstock_cuda_abi(void) {{ return {ABI + 1}; }}")
    declined = open_library(path)
    assert declined == Unavailable(
        f"the CUDA library has ABI {ABI + 1}, not {ABI}: install the same release"
    )


def test_file_that_is_no_library_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "no.so").write_text("no library")
    for path in (
        tmp_path / "no.so",
        tmp_path / "absent.so",
        _shared_object(tmp_path, "int other;"),
    ):
        declined = open_library(path)
        assert isinstance(declined, Unavailable) and "cannot be loaded" in declined.reason


def test_registry_explains_why_there_is_no_library() -> None:
    assert find_library(None) == Unavailable("torch is built without CUDA")
    absent = find_library("99.1")
    assert absent == Unavailable("penstock-cuda99 is not installed")
    register(absent)
    table = KernelRegistry(
        all_ops(), Machine("cuda", 90), frozenset({"cuda", "triton", "reference"})
    )
    (line,) = [line for line in table.explain() if line.startswith("attention:")]
    assert line.startswith("attention: triton; cuda: penstock-cuda99 is not installed")
