"""Measures the limits of this processor with `processor_limits.cc`, which it compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.lab.kernel_table import Limits

SOURCE: Final = Path(__file__).with_name("processor_limits.cc")


def measure_limits(threads: int, isas: Sequence[str]) -> Limits:
    """Measure the limits of `isas`, which this processor must have, with `threads` threads. Raises
    FileNotFoundError without a C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler: install g++, or name one in CXX")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "processor_limits"
        build = [compiler, "-std=c++20", "-O2", "-pthread", str(SOURCE), "-o", str(program)]
        subprocess.run(build, check=True)
        command = [str(program), str(threads), *isas]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
    answer = json.loads(found.stdout)
    return Limits(answer["read_bytes_s"], answer["multiply_adds_s"])
