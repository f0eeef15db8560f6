"""Launching Triton kernels, or only recording the launches for compilation ahead of time.

A packaged cubin serves if there is one (`packaged_kernels`); Triton compiles the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from penstock.kernels.registry import Machine
from penstock.kernels.triton.compile.packaged_kernels import PackagedKernels
from penstock.kernels.triton.compile.signature import OPTIONS, Signature, type_of
from penstock.kernels.triton.language import INSTALLED, triton

OLDEST_CAPABILITY = 80


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: the kernel, its run-time arguments in order, its constants, the warps of a
    program and the depth to which its loops are pipelined."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int

    def signature(self) -> Signature:
        """All that its compilation depends on."""
        function = self.kernel.fn
        return Signature(
            function.__module__,
            function.__name__,
            tuple(type_of(argument) for argument in self.arguments),
            tuple(sorted(self.constants.items())),
            self.num_warps,
            self.num_stages,
        )


class _Serving:
    """The packaged kernels of the process, set once at engine start."""

    packaged: PackagedKernels | None = None


_recorded: ContextVar[list[Launch] | None] = ContextVar("recorded", default=None)


def serve_packaged(packaged: PackagedKernels | None) -> None:
    """Let these packaged kernels serve the launches that they have, from now on; None: Triton
    serves all."""
    _Serving.packaged = packaged


def interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, on CPU tensors."""
    return INSTALLED and bool(triton.knobs.runtime.interpret)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    num_warps: int = 4,
    num_stages: int = 3,
    **constants: Any,
) -> None:
    """Launch `kernel` on the current stream; do nothing if the grid is empty. Raises RuntimeError
    if it must be compiled and Triton is not installed."""
    recorded = _recorded.get()
    if recorded is not None:
        recorded.append(Launch(kernel, arguments, constants, num_warps, num_stages))
        return
    if not all(grid):
        return
    missing: str | None = "there are no packaged kernels"
    if _Serving.packaged is not None:
        missing = _Serving.packaged.start(kernel, grid, arguments, num_warps, num_stages, constants)
    if missing is not None:
        if not INSTALLED:
            name = kernel.fn.__name__
            raise RuntimeError(f"{name}: {missing}, and Triton is not installed to compile it")
        options = {"num_warps": num_warps, "num_stages": num_stages, **OPTIONS}
        kernel[grid](*arguments, **options, **constants)


@contextmanager
def record_launches() -> Iterator[list[Launch]]:
    """Append launches to the list inside the context, and run nothing."""
    launches: list[Launch] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)


# A product with bfloat16 operands is garbage in Triton's interpreter (3.6, 3.9).
BF16_IS_BROKEN = interpreted()


def why_not(machine: Machine) -> str | None:
    """Return why Triton kernels cannot run there, or None."""
    if machine.interpreted:
        return None
    if machine.device != "cuda":
        return "needs a CUDA device"
    if machine.capability < OLDEST_CAPABILITY:
        return f"needs compute capability 8.0, not {machine.capability / 10:.1f}"
    if not INSTALLED and _Serving.packaged is None:
        return "Triton is not installed, and there are no packaged kernels"
    return None


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def in_units(size: int, longest: int = 64) -> tuple[int, int]:
    """Return (units, UNIT): `size` in units of the largest power of two, up to `longest`, that
    divides it.

    A kernel that gets the units at run time and multiplies them by the constant serves all sizes,
    and its compiler still knows how rows are aligned.
    """
    unit = min(size & -size, longest)
    return size // unit, unit


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
