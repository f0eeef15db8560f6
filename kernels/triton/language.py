"""`triton` and `tl` (`triton.language`), or substitutes for both if Triton is not installed.

Without Triton only the packaged cubins run (`packaged_kernels`). The substitute for a kernel keeps
its name, parameter names and source; it can be neither compiled nor interpreted. Every file with
kernels imports both names from here, and uses them only inside kernels and as `@triton.jit`.
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
        """Stands in for a kernel without Triton: keeps its name, parameter names and source."""

        def __init__(self, fn: Callable[..., Any]) -> None:
            self.fn = fn
            self.__name__ = fn.__name__
            self.arg_names = list(inspect.signature(fn).parameters)

    class _Absent:
        """The substitute for the module `triton`, with the attributes that a file uses when it is
        imported."""

        @staticmethod
        def jit(
            fn: Callable[..., Any] | None = None, *, do_not_specialize: Sequence[str] = ()
        ) -> Any:
            return _Written if fn is None else _Written(fn)

    triton = _Absent()
    tl = None

__all__ = ["INSTALLED", "tl", "triton"]
