"""Every Triton kernel compiles, without a GPU, for the targets that are served."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

_KERNELS = Path(__file__).parents[2] / "kernels" / "triton"
_TARGETS = {"sm_80", "sm_90a"}
# An A100 has no 8-bit floats.
_NOT_FOR_SM_80 = {"quantize_float8_kernel", "linear_float8_kernel", "experts_float8_kernel"}

pytestmark = pytest.mark.timeout(900)  # minutes of compilation, on a shared core

Compile = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def compiled(request: pytest.FixtureRequest) -> Compile:
    """Compile ahead of time, with the cache in pytest's temporary folder."""
    cache = request.config.cache
    assert cache is not None

    def run(*arguments: str) -> list[dict[str, Any]]:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
            "TRITON_CACHE_DIR": str(cache.mkdir("triton")),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [
            sys.executable,
            "-m",
            "penstock.kernels.triton.compile.ahead_of_time",
            *arguments,
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def _written_kernels() -> set[str]:
    sources = "".join(path.read_text() for path in _KERNELS.rglob("*.py"))
    return set(re.findall(r"^def (\w+_kernel)\(", sources, re.MULTILINE))


def _check(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert record["cubin_bytes"] > 0
        assert record["ptx_target"].rstrip(",") == record["target"]
        # Shared memory of a block on an A100; kernels must run on both. Kernels for sm_80 serve 8.6
        # and 8.9 too, whose blocks have less.
        most_kib = 99 if record["target"] == "sm_80" else 163
        assert record["shared_bytes"] <= most_kib * 1024


def test_each_kernel_compiles_for_each_target(compiled: Compile) -> None:
    records = compiled("--each-kernel-once")
    _check(records)
    results = {(record["kernel"], record["target"]) for record in records}
    assert len(_written_kernels()) >= 11
    expected = {(kernel, target) for kernel in _written_kernels() for target in _TARGETS}
    assert results == expected - {(kernel, "sm_80") for kernel in _NOT_FOR_SM_80}


@pytest.mark.slow
def test_each_signature_compiles_for_each_target(compiled: Compile) -> None:
    records = compiled()
    _check(records)
    assert len(records) > 120


@pytest.mark.slow
def test_no_value_of_an_integer_makes_a_kernel_of_its_own() -> None:
    """Also not when Triton compiles a kernel on first use, for which it would examine 1 and
    multiples of 16: a step would wait for it."""
    from penstock.kernels.ops import all_ops
    from penstock.kernels.triton.compile.ahead_of_time import signatures_of_cases

    specialised = set()
    kernels = set()
    for signature in signatures_of_cases(op for op in all_ops() if "triton" in op.implementations):
        kernels.add(signature.kernel)
        parameters = getattr(import_module(signature.module), signature.kernel).params
        for parameter, written in zip(parameters, signature.types, strict=False):
            if not written.startswith("*") and not parameter.do_not_specialize:
                specialised.add((signature.kernel, parameter.name))
    assert kernels == _written_kernels()
    assert specialised == set()
