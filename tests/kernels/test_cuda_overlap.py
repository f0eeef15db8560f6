"""Kernels that may start while the one before them ends: where they wait, in machine code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton has no build for this platform")

_SOURCES = Path(__file__).parents[2] / "csrc"
_KERNELS = (
    "attention/decode_attention",
    "attention/prefill_attention",
    "linear/stream_linear",
    "norm/rms_norm",
    "rope_cache/rope_cache",
    "sampling/sample",
)
_NAME = re.compile(r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", re.M)
_WAIT, _LET_START = "ACQBULK", "PREEXIT"
_TOUCHES_MEMORY = re.compile("LDG|STG|ATOM|RED|LDGSTS|UTMALDG|UBLKCP|EXIT")


def _functions(source: str, folder: Path) -> dict[str, list[str]]:
    """Return the instructions of each kernel of a file, as nvcc compiles it for sm_90a."""
    dump = shutil.which("cuobjdump") or str(
        Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    )
    if shutil.which("nvcc") is None or not Path(dump).exists():
        pytest.skip("there is no nvcc or no cuobjdump")
    cubin = folder / "kernel.cubin"
    command = [
        *("nvcc", "-std=c++17", "-O3", f"-I{_SOURCES}", "-cubin", "--Werror=all-warnings"),
        *("-gencode=arch=compute_90a,code=sm_90a", "-o", str(cubin)),
        str(_SOURCES / "cuda" / f"{source}.cu"),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    listed = subprocess.run([dump, "-sass", str(cubin)], capture_output=True, text=True, check=True)
    _, *functions = listed.stdout.split("Function : ")
    return {code.split()[0]: _NAME.findall(code) for code in functions}


@pytest.mark.slow
@pytest.mark.parametrize("source", _KERNELS)
def test_only_weights_are_read_before_the_wait(source: str, tmp_path: Path) -> None:
    functions = _functions(source, tmp_path)
    assert functions
    for name, instructions in functions.items():
        assert instructions.count(_WAIT) == 1, name
        assert instructions.count(_LET_START) == 1, name
        before = instructions[: instructions.index(_WAIT)]
        touched = [one for one in before if _TOUCHES_MEMORY.match(one)]
        if source == "linear/stream_linear":
            # Two rows for each of four chunks: in flight before the wait, or it gains nothing.
            assert len(touched) == 8, name
            assert all(one.endswith("CONSTANT") for one in touched), name
        else:
            assert not touched, name
