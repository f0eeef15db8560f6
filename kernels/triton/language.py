"""`triton` and `tl` for the files that contain kernels: Triton if it is installed.

If it is not, the packaged cubins serve (`packaged_kernels`), and a kernel is only its name, its
parameters and its source: it can be neither compiled nor interpreted. So a file with kernels
imports both names from here, and uses them only inside kernels and as `@triton.jit`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

try:
    import triton
    import triton.language as tl

    INSTALLED = True
except ImportError:
    INSTALLED = False

    class _Written:
        """A kernel that cannot be compiled here."""

        def __init__(self, fn: Callable[..., Any]) -> None:
            self.fn = fn
            self.__name__ = fn.__name__
            self.arg_names = list(inspect.signature(fn).parameters)

    class _Absent:
        """The parts of `triton` that are used when a file is imported."""

        @staticmethod
        def jit(
            fn: Callable[..., Any] | None = None, *, do_not_specialize: Sequence[str] = ()
        ) -> Any:
            return _Written if fn is None else _Written(fn)

    triton = _Absent()
    tl = None

__all__ = ["INSTALLED", "tl", "triton"]
