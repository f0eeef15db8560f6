"""Selects the packaged cubin for a launch and loads it on first use.

A cubin serves a launch if the kernel's source, the types of the arguments, the constants, warps and
stages are equal. Triton compiles the kernel if there is no such cubin, if it cannot be loaded or if
a tensor is not aligned as it expects; the log says so once per kernel. If the first launch of a
cubin fails, no cubin is used any more.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import torch

from penstock.kernels.triton.compile.archive import Archive, Cubin
from penstock.kernels.triton.compile.signature import Signature, source_hash, type_of

log = logging.getLogger(__name__)

REQUEST = "@IIIIQ"
"""`struct` format of a launch request up to the parameters: blocks in three dimensions, bytes of
parameters, stream."""


# Functions for `map`: a launch takes microseconds, most of which a Python loop would cost.
_type = attrgetter("dtype")
_address = torch.Tensor.data_ptr


class Misaligned(Exception):
    """A tensor is not aligned as the kernel expects."""


class Launcher(Protocol):
    """Loads cubins and launches them; see `kernels.cuda.launcher`."""

    def load(self, image: bytes, cubin: Cubin) -> int | str:
        """Load a cubin and return its handle for `start`, or the reason why it cannot be loaded."""

    def start(self, handle: int, request: bytes) -> None:
        """Launch the kernel of `handle`. `request`: `REQUEST`, followed by the parameters. Raises
        Misaligned, or RuntimeError if the launch fails."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A loaded kernel. `handle`: the result of `Launcher.load`. `size`: bytes of the parameters.
    `pack(x, y, z, size, stream, *parameters)` returns the request for `Launcher.start`."""

    handle: int
    size: int
    pack: Callable[..., bytes]


class PackagedKernels:
    """Launches the kernels of an archive on one device. `stream`: a function that returns the
    current stream."""

    def __init__(self, archive: Archive, launcher: Launcher, stream: Callable[[], int]) -> None:
        self._archive = archive
        self._launcher = launcher
        self._stream = stream
        self._cubins = {cubin.signature: cubin for cubin in archive.cubins}
        self._packaged = frozenset(cubin.signature.kernel for cubin in archive.cubins)
        self._ready: dict[tuple[Any, ...], _Ready | str] = {}
        self._known: dict[Any, tuple[int, dict[tuple[Any, ...], _Ready | str]]] = {}
        self._sources: dict[Any, str] = {}
        self._logged: set[str] = set()
        self._started: set[int] = set()
        self._unusable: str | None = None

    def __len__(self) -> int:
        return len(self._cubins)

    @property
    def served(self) -> int:
        """Number of kernel variants (types, constants, warps, stages) launched from cubins so
        far."""
        return sum(isinstance(one, _Ready) for one in self._ready.values())

    @property
    def missing(self) -> int:
        """Number of kernel variants that Triton had to compile so far."""
        return len(self._ready) - self.served

    def report(self) -> str:
        """Return one line for the log: how many kernels are packaged, in use, and compiled by
        Triton."""
        if self._unusable is not None:
            return f"kernels are compiled on first use: {self._unusable}"
        return (
            f"{len(self)} packaged kernels for {self._archive.target}: "
            f"{self.served} in use, {self.missing} compiled here"
        )

    def start(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        num_warps: int,
        num_stages: int,
        constants: dict[str, Any],
    ) -> str | None:
        """Launch the cubin of the kernel and return None, or return why Triton must compile the
        kernel. If the first launch of a cubin fails, later calls try no cubin. Raises RuntimeError
        if a later launch of a cubin fails."""
        if self._unusable is not None:
            return self._unusable
        fn = kernel.fn
        known = self._known.get(fn)
        if known is None:
            known = self._known[fn] = _leading_tensors(arguments), {}
        count, of_kernel = known
        tensors, numbers = arguments[:count], arguments[count:]
        types = *map(_type, tensors), *map(type, numbers)
        key = (num_warps, num_stages, *constants, *constants.values(), *types)
        ready = of_kernel.get(key)
        if ready is None:
            ready = self._resolve(kernel, arguments, num_warps, num_stages, constants)
            of_kernel[key] = self._ready[fn, key] = ready
        if isinstance(ready, str):
            return ready
        x, y, z, *_ = *grid, 1, 1
        try:
            request = ready.pack(
                x, y, z, ready.size, self._stream(), *map(_address, tensors), *numbers
            )
            self._launcher.start(ready.handle, request)
        except (Misaligned, struct.error) as error:
            return self._log_once(fn.__name__, str(error))
        except RuntimeError as error:
            if ready.handle in self._started:
                raise
            self._unusable = f"the packaged {fn.__name__} cannot be started ({error})"
            log.warning("packaged kernels are not used: %s", self._unusable)
            return self._unusable
        self._started.add(ready.handle)
        return None

    def _resolve(
        self,
        kernel: Any,
        arguments: tuple[Any, ...],
        num_warps: int,
        num_stages: int,
        constants: dict[str, Any],
    ) -> _Ready | str:
        fn = kernel.fn
        types = tuple(type_of(argument) for argument in arguments)
        sizes = tuple(sorted(constants.items()))
        signature = Signature(fn.__module__, fn.__name__, types, sizes, num_warps, num_stages)
        cubin = self._cubins.get(signature)
        if fn not in self._sources:  # hashing it takes a millisecond or two
            self._sources[fn] = source_hash(kernel)
        if cubin is None:
            known = fn.__name__ in self._packaged
            reason = "not packaged for these sizes and types" if known else "not packaged"
        elif cubin.source != self._sources[fn]:
            reason = "packaged from another source"
        else:
            loaded = self._launcher.load(self._archive.image(cubin), cubin)
            if not isinstance(loaded, str):
                size = struct.calcsize(cubin.layout)
                whole = struct.Struct(REQUEST + cubin.layout.removeprefix("@"))
                return _Ready(loaded, size, whole.pack)
            reason = loaded
        return self._log_once(fn.__name__, reason)

    def _log_once(self, name: str, reason: str) -> str:
        if name not in self._logged:
            self._logged.add(name)
            log.info("%s is compiled here: %s", name, reason)
        return reason


def _leading_tensors(arguments: tuple[Any, ...]) -> int:
    """Return the number of tensors; the arguments of every kernel are tensors, then numbers."""
    are_tensors = [isinstance(argument, torch.Tensor) for argument in arguments]
    count = sum(are_tensors)
    assert all(are_tensors[:count]), "a number precedes a tensor"
    return count
