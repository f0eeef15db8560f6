"""The `Ops` of a kind, importing what that kind needs and nothing of the others.

Importing this module, or loading the native kind, imports no torch: that costs seconds, and a CPU
server must answer sooner.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.kernels.ops_interface import Ops

Kind = Literal["native", "reference", "triton"]


def load_ops(
    kind: Kind, *, pool: Any = None, level: str | None = None, device: str = "cuda"
) -> Ops[Any]:
    """An eager `Ops`, with `sample` and `top_logprobs` beside its methods.

    "native": over numpy arrays, on `pool` (a `_native.ThreadPool`) at `level` (None: the best that
    the CPU has). "reference": over CPU torch tensors. "triton": over torch tensors on `device`.
    Raises ImportError where the extension, torch or triton is not installed.
    """
    if kind == "native":
        from penstock.kernels.native import NativeOps

        return NativeOps.eager(pool, level)
    if kind == "reference":
        from penstock.kernels.reference import ReferenceOps

        return ReferenceOps()
    from penstock.kernels.triton import TritonOps

    return TritonOps(device)
