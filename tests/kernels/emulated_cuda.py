"""The CUDA library compiled as C++, its kernels emulated: see csrc/cuda/emulated.h."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "csrc"


def emulated_library(config: pytest.Config) -> Path:
    """Return the library, built if its sources have changed. Skips without a compiler."""
    units = sorted(SOURCES.glob("cuda/**/*.cu"))
    read = [*units, *sorted(SOURCES.glob("cuda/**/*.[ch]*"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in read)).hexdigest()
    assert config.cache is not None
    built = config.cache.mkdir("emulated_cuda") / f"{digest[:16]}.so"
    if not built.exists():
        fresh = built.with_suffix(".partial")
        compile_emulated(units, fresh)
        fresh.rename(built)
    return built


def compile_emulated(units: list[Path], to: Path) -> None:
    """Compile a shared library of these kernels and of the emulation."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    command = [
        *("g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-DPENSTOCK_EMULATED"),
        *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{SOURCES}"),
        *("-o", str(to), "-x", "c++"),
    ]
    sources = [*sorted(SOURCES.glob("cuda/emulated*.cc")), *units]
    subprocess.run([*command, *map(str, sources)], check=True)
