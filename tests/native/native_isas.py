"""Kernels of every ISA that this machine can run, called eagerly."""

from __future__ import annotations

from typing import Any

import pytest

native = pytest.importorskip("penstock._native")

ISAS: list[str] = native.supported_isas()


class Kernels:
    """`call` of one ISA with its own small pool."""

    def __init__(self, isa: str, threads: int = 2) -> None:
        self.isa = isa
        self._set = native.KernelSet(isa)
        self._pool = native.ThreadPool(threads)

    def __call__(
        self, name: str, tensors: list[Any], integers: list[int] = (), reals: list[float] = ()
    ) -> None:
        self._set.call(self._pool, name, tensors, list(integers), list(reals))
