"""The CUDA kernels, compiled as C++ and run thread by thread on the CPU, over the registry's cases.

Index arithmetic, fragment layouts, masks and barriers are those of the GPU; see
csrc/cuda/emulated.h.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.kernels.op import Case, Op
from penstock.kernels.ops import all_ops

pytest.importorskip("triton", reason="Triton has no build for this platform")

_SOURCES = Path(__file__).parents[2] / "csrc"
_CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}")
    for op in all_ops()
    if "cuda" in op.order
    for case in op.cases
    # What these have no CUDA form for is Triton's, and tested there.
    if op.name != "linear" or case.kind != "integer"
]
_DECODED = [param for param in _CASES if "attention-decode" in str(param.id)]
# Token 0 and the last, alone: float sums must not depend on the batch either.
_ALONE = [
    param
    for param in _CASES
    if param.id
    in {
        "attention-decode-long",
        "attention-decode-f16",
        "linear-bf16-T18-K64-N48",
        "rope_cache-head-norm",
        "add_rms_norm-T3-W576",
        "sample-mixed",
    }
]

Ask = Callable[[str, Op, Case], Any]


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> Path:
    """The emulated library, built when its sources have changed."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    assert request.config.cache is not None
    units = sorted(_SOURCES.glob("cuda/**/*.cu"))
    read = [*units, *sorted(_SOURCES.glob("cuda/**/*.[ch]*"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in read)).hexdigest()
    built = request.config.cache.mkdir("emulated_cuda") / f"{digest[:16]}.so"
    if not built.exists():
        fresh = built.with_suffix(".partial")
        command = [
            *("g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-DPENSTOCK_EMULATED"),
            *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", f"-I{_SOURCES}"),
            *("-o", str(fresh), str(_SOURCES / "cuda" / "emulated.cc"), "-x", "c++"),
        ]
        subprocess.run([*command, *map(str, units)], check=True)
        fresh.rename(built)
    return built


@pytest.fixture(scope="module")
def ask(library: Path) -> Iterator[Ask]:
    """Asks a worker for a check of one case; what CUDA does not serve is interpreted there."""
    script = Path(__file__).with_name("interpret.py")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONWARNINGS": "ignore",
    }
    with subprocess.Popen(
        [sys.executable, str(script), str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None

        def question(check: str, op: Op, case: Case) -> Any:
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(json.dumps((check, op.name, case.name)) + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
            assert answer, "the worker died; its traceback is on stderr"
            return json.loads(answer)

        yield question
        worker.stdin.close()


@pytest.mark.parametrize(("op", "case"), _CASES)
def test_kernel_matches_the_reference(ask: Ask, op: Op, case: Case) -> None:
    assert ask("differences" if case.kind == "exact" else "rounded", op, case) == []


@pytest.mark.parametrize(("op", "case"), _ALONE)
def test_row_alone_has_the_bits_of_the_row_in_the_batch(ask: Ask, op: Op, case: Case) -> None:
    assert ask("alone", op, case) == []


@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_units_listed_once_serve_every_layer(ask: Ask, op: Op, case: Case) -> None:
    assert ask("prepared", op, case) == []


@pytest.mark.parametrize(("op", "case"), _DECODED)
def test_padding_changes_nothing(ask: Ask, op: Op, case: Case) -> None:
    assert ask("padded", op, case) == []
