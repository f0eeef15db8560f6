"""Modules that loading each kind of ops imports."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.kernels.load_ops import load_ops
from penstock.kernels.reference import ReferenceOps


def _imported_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["load_ops", "registry", "ops_interface", "weights", "sampler_inputs"]
)
def test_interfaces_import_no_torch(module: str) -> None:
    assert not {"torch", "triton"} & _imported_by(f"import penstock.kernels.{module}")


def test_reference_imports_no_triton_kernels() -> None:
    modules = _imported_by("import penstock.kernels.reference")
    assert "torch" in modules
    assert "penstock.kernels.triton" not in modules


def test_reference_kind_is_served_by_the_references() -> None:
    ops = load_ops("reference")
    assert isinstance(ops, ReferenceOps)
    assert all(": reference;" in line for line in ops.registry.explain())
