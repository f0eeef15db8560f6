"""Finds, checks and calls the CUDA library through ctypes. csrc/cuda/abi.h declares its functions.

The library is a separate distribution, one per CUDA major version (`penstock-cuda13`), and works
with every version of torch and Python; `torch.version.cuda` determines which distribution fits. If
none is installed, or one with another ABI, `find_library` returns the reason, and Triton's
implementations are used.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from penstock.kernels.cuda.tuning import DEFAULTS, VALUES

ABI = 8
FILE = "libpenstock_cuda.so"

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
# Types of the arguments of each function. The stream, the last argument, is not listed.
_SIGNATURES: dict[str, list[Any]] = {
    "rms_norm": [_P, _P, _P, _P, _P, _F, _I, _I],
    "rope_cache": [_P] * 11 + [_F] + [_I] * 6 + [_L, _L],
    "decode_attention": [_P] * 15 + [_I, _L, _L, _F] + [_I] * 8,
    "prefill_attention": [_P] * 10 + [_I] * 4 + [_L, _L, _F] + [_I] * 7,
    "linear": [_P] * 4 + [_I] * 4,
    "linear_float8": [_P] * 5 + [_I] * 6,
    "staged_linear": [_P] * 7 + [_I] * 7,
    "sample": [_P] * 8 + [_I] * 2,
}

Argument: TypeAlias = "torch.Tensor | int | float | None"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason why the CUDA library, or its packaged kernels, cannot be used."""

    reason: str


class Library:
    """A loaded CUDA library with the expected ABI.

    `path`: the file of the library.
    `tuning`: setting -> value in use, see `cuda.tuning`.
    `called`: the kernels that were called.
    `emulated`: whether the library runs on the CPU, over CPU tensors.
    """

    def __init__(self, path: Path, loaded: ctypes.CDLL) -> None:
        self.path = path
        self._functions: dict[str, tuple[Any, int]] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(loaded, f"penstock_cuda_{name}")
            function.argtypes, function.restype = [*arguments, _P], _I
            tensors = arguments.count(_P)
            assert arguments[:tensors] == [_P] * tensors, f"{name}: a number precedes a tensor"
            self._functions[name] = function, tensors
        self._error = loaded.penstock_cuda_error
        self._error.argtypes, self._error.restype = [_I], ctypes.c_char_p
        self._tune = loaded.penstock_cuda_tune
        self._tune.argtypes, self._tune.restype = [_I, _I], _I
        self.tuning = dict(DEFAULTS)
        self.called: set[str] = set()
        self.emulated = loaded.penstock_cuda_runtime() == 0

    def call(self, name: str, *arguments: Argument) -> None:
        """Launch the kernel `name` on the current stream, and add the name to `called`. Tensors are
        passed as addresses: the caller checks contiguity, types and devices. Raises RuntimeError if
        the launch fails."""
        self.called.add(name)
        function, count = self._functions[name]
        tensors: Any = arguments[:count]
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        stream = None if self.emulated else current_stream()
        status = function(*addresses, *arguments[count:], stream)
        if status != 0:
            raise RuntimeError(f"{name}: {self._error(status).decode()}")

    def tune(self, tuning: Mapping[str, int]) -> None:
        """Select kernel variants (setting -> value, see `cuda.tuning`) from now on, in the whole
        process. A captured CUDA graph keeps the variants with which it was captured. Raises
        ValueError for a setting or value that the library or the current device does not
        support."""
        places = list(VALUES)
        for name, value in tuning.items():
            if name not in VALUES or self._tune(places.index(name), value) != 0:
                raise ValueError(f"the CUDA library cannot set {name} to {value} here")
            self.tuning[name] = value

    @contextmanager
    def tuned(self, **tuning: int) -> Iterator[None]:
        """Select kernel variants like `tune`, but only inside the context: for benchmarks and
        tests."""
        before = {name: self.tuning[name] for name in tuning if name in self.tuning}
        try:
            self.tune(tuning)
            yield
        finally:
            self.tune(before)


def current_stream() -> int:
    """Return the handle of the current stream. No `torch.cuda.Stream` is created, since every
    launch calls this function."""
    stream: int = torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
    return stream


def open_library(path: Path) -> Library | Unavailable:
    """Load the CUDA library from a file. Return the reason if the library cannot be loaded or has
    another ABI. A GPU driver is not needed."""
    try:
        loaded = ctypes.CDLL(str(path))
        number = loaded.penstock_cuda_abi()
    except (OSError, AttributeError) as error:
        return Unavailable(f"the CUDA library cannot be loaded ({error})")
    if number != ABI:
        return Unavailable(
            f"the CUDA library has ABI {number}, not {ABI}: install the same release"
        )
    return Library(path, loaded)


def find_library(cuda_version: str | None) -> Library | Unavailable:
    """Open the installed library for the CUDA version that torch was built for
    (`torch.version.cuda`), or return the reason why there is none."""
    if cuda_version is None:
        return Unavailable("torch is built without CUDA")
    major = cuda_version.split(".")[0]
    found = importlib.util.find_spec(f"penstock_cuda{major}")
    if found is None or found.origin is None:
        return Unavailable(f"penstock-cuda{major} is not installed")
    return open_library(Path(found.origin).with_name(FILE))
