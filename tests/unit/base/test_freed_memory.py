"""Memory that was freed goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

LOADING = """
import numpy as np
from pathlib import Path
from penstock.base.resources import return_freed_memory

def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 // 2**20

np.ones(2**17)  # 1 MiB: once it is freed, the allocator keeps such arrays in its heap
arrays = [np.ones(2**17) for _ in range(200)]
later = np.ones(2**17)  # above them
arrays.clear()
before = resident_mib()
return_freed_memory()
print(before - resident_mib(), later.sum())
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)
def test_freed_arrays_below_a_later_one_go_back_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=60, check=True
    )
    returned_mib, kept = done.stdout.split()
    assert int(returned_mib) > 150
    assert float(kept) == 2**17
