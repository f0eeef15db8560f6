"""Launches Triton kernels, or only records launches for compilation ahead of time.

A launch runs the packaged cubin for its signature if there is one (`packaged_kernels`); otherwise
Triton compiles the kernel.
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
    """A recorded launch.

    `kernel`: the function under `@triton.jit`.
    `arguments`: the run-time arguments, in order.
    `constants`: the compile-time arguments by name.
    `num_warps`: warps of a program.
    `num_stages`: depth to which the kernel's loops are pipelined.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int

    def signature(self) -> Signature:
        """Return everything on which the compilation of the kernel depends."""
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
    """The packaged kernels that this process uses; the engine sets them once at start."""

    packaged: PackagedKernels | None = None


_recorded: ContextVar[list[Launch] | None] = ContextVar("recorded", default=None)


def serve_packaged(packaged: PackagedKernels | None) -> None:
    """Use `packaged` for all later launches for which it has a cubin. None: Triton compiles all
    kernels."""
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
    """Launch `kernel` on the current stream; do nothing if the grid is empty. Inside
    `record_launches` only record the launch. Raises RuntimeError if the kernel must be compiled and
    Triton is not installed."""
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
    """Yield a list to which launches inside the context are appended instead of being run."""
    launches: list[Launch] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)


# Triton's interpreter (3.6, 3.9) computes products of bfloat16 operands incorrectly.
BF16_IS_BROKEN = interpreted()


def why_not(machine: Machine) -> str | None:
    """Return why Triton kernels cannot run on `machine`, or None if they can."""
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
    """Return the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def in_units(size: int, longest: int = 64) -> tuple[int, int]:
    """Return (units, unit) with units * unit = size. `unit` is the largest power of two, up to
    `longest`, that divides `size`.

    A kernel that gets `units` at run time and UNIT as a constant is compiled once for many sizes,
    and the compiler still knows the alignment of rows.
    """
    unit = min(size & -size, longest)
    return size // unit, unit


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
