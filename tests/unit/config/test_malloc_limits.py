"""Memory that a process keeps after its threads have freed it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HAS_GLIBC = "CS_GNU_LIBC_VERSION" in os.confstr_names
MIB = 2**20
# Each of four threads allocates 8 MiB and frees them, twice, and keeps a small block allocated
# after them.
SCRIPT = """
import ctypes, sys, threading
from penstock.config import limit_malloc_arenas

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p] * 2
libc.fclose.argtypes, libc.malloc_info.argtypes = [ctypes.c_void_p], [ctypes.c_int, ctypes.c_void_p]
limit_malloc_arenas()
together = threading.Barrier(4)

def press():
    for _ in range(2):
        together.wait()
        blocks = [libc.malloc(2**20) for _ in range(8)]
        libc.malloc(100_000)
        for block in blocks:
            libc.free(block)

threads = [threading.Thread(target=press) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


def heaps_and_bytes(place: Path, **environment: str) -> tuple[int, int]:
    """Run SCRIPT; return the number of heaps of the process and the bytes that the system gave
    them."""
    quiet = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    subprocess.run([sys.executable, "-c", SCRIPT, place], env=quiet | environment, check=True)
    told = place.read_text()
    totals = re.findall(r'^<system type="current" size="(\d+)"/>', told, re.MULTILINE)
    return told.count("<heap nr="), int(totals[-1])


@pytest.mark.skipif(not HAS_GLIBC, reason="only glibc's heaps are bounded")
def test_threads_share_a_heap_that_returns_freed_memory(tmp_path: Path) -> None:
    heaps, held = heaps_and_bytes(tmp_path / "bounded")
    assert heaps == 1
    assert held < 8 * MIB


@pytest.mark.skipif(not HAS_GLIBC, reason="only glibc's heaps are bounded")
def test_malloc_settings_of_the_operator_are_kept(tmp_path: Path) -> None:
    heaps, _ = heaps_and_bytes(tmp_path / "two", MALLOC_ARENA_MAX="2")
    assert heaps == 2
    heaps, held = heaps_and_bytes(tmp_path / "theirs", GLIBC_TUNABLES="glibc.malloc.perturb=0")
    assert heaps > 1 and held > 8 * MIB, "as glibc has it"
