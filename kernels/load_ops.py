"""Loads one implementation of `Ops`, importing only the modules that it needs.

A CPU server must start fast, so this module and the implementation "native" import no torch, which
would take seconds.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.kernels.ops_interface import Ops

Kind = Literal["native", "reference", "triton"]


def load_ops(
    kind: Kind, *, pool: Any = None, isa: str | None = None, device: str = "cuda"
) -> Ops[Any]:
    """Return an eager implementation of `Ops`, which also has `sample` and `top_logprobs`.

    - "native": over numpy arrays, on the thread pool `pool` (a `_native.ThreadPool`), with the
      kernels of `isa` (None: the widest ISA of the CPU).
    - "reference": over CPU torch tensors.
    - "triton": over torch tensors on `device`.

    Raises ImportError if the extension module, torch or triton is not installed.
    """
    if kind == "native":
        from penstock.kernels.native import NativeOps

        return NativeOps.eager(pool, isa)
    if kind == "reference":
        from penstock.kernels.reference import ReferenceOps

        return ReferenceOps()
    from penstock.kernels.triton import TritonOps

    return TritonOps(device)
