"""Loads and launches cubins through the CUDA library and the driver (csrc/cuda/modules.h), and
finds the archives of cubins that are installed with the library."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import torch

from penstock.kernels.cuda.library import ABI, FILE, Unavailable, current_stream
from penstock.kernels.triton.compile.archive import Archive, Cubin
from penstock.kernels.triton.compile.launch import serve_packaged
from penstock.kernels.triton.compile.packaged_kernels import Misaligned, PackagedKernels

DRIVER = "libcuda.so.1"
_MISALIGNED = -2

_TARGETS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a"}
"""Compute capability times 10 -> target of an archive of cubins. Cubins for sm_80 run on every 8.x;
cubins for another target run only on the capability of that target."""


class DriverLauncher:
    """`kernels.triton.compile.packaged_kernels.Launcher` over the CUDA library. The constructor
    raises OSError if the library cannot be loaded, AttributeError if the library lacks a function,
    and RuntimeError if the driver cannot be loaded."""

    def __init__(self, library: Path, device: int = 0, driver: str = DRIVER) -> None:
        loaded = ctypes.CDLL(str(library))
        integer, pointer, word = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64
        self._load, self._start = loaded.penstock_cuda_load, loaded.penstock_cuda_start
        self._load.argtypes = [
            *(ctypes.c_char_p, ctypes.c_char_p, integer, integer, integer, word),
            ctypes.POINTER(pointer),
        ]
        self._start.argtypes = [pointer, ctypes.c_char_p]
        self._error = loaded.penstock_cuda_driver_error
        self._error.argtypes, self._error.restype = [integer], ctypes.c_char_p
        self._device = device
        loaded.penstock_cuda_open_driver.argtypes = [ctypes.c_char_p]
        if loaded.penstock_cuda_open_driver(driver.encode()) != 0:
            raise RuntimeError(f"{driver} cannot be loaded")

    def load(self, image: bytes, cubin: Cubin) -> int | str:
        """See `Launcher.load`."""
        handle = ctypes.c_void_p()
        threads = 32 * cubin.num_warps
        status = self._load(
            *(image, cubin.entry.encode(), self._device, threads, cubin.shared_bytes),
            *(cubin.pointer_words, ctypes.byref(handle)),
        )
        if status != 0 or handle.value is None:
            return f"its cubin cannot be loaded ({self._error(status).decode()})"
        return handle.value

    def start(self, handle: int, request: bytes) -> None:
        """See `Launcher.start`."""
        status = self._start(handle, request)
        if status == 0:
            return
        if status == _MISALIGNED:
            raise Misaligned(self._error(status).decode())
        raise RuntimeError(f"a packaged kernel: {self._error(status).decode()}")


def target_for(capability: int) -> str | None:
    """Return the target whose cubins run on a GPU of compute capability `capability` (90 for 9.0),
    or None if no archive supports the GPU."""
    return _TARGETS.get(80 if capability // 10 == 8 else capability)


def archive_name(target: str) -> str:
    return f"kernels_{target}.zip"


def serve_installed(device: str) -> PackagedKernels | Unavailable:
    """Make Triton's ops use the packaged kernels that are installed for `device`, from now on.
    Return these kernels, or the reason why there are none."""
    found = find_packaged(torch.version.cuda, device)
    serve_packaged(found if isinstance(found, PackagedKernels) else None)
    return found


def serve_none(reason: str) -> Unavailable:
    """Make Triton compile all of its kernels from now on. Return `reason` as `Unavailable`."""
    serve_packaged(None)
    return Unavailable(reason)


def find_packaged(cuda_version: str | None, device: str) -> PackagedKernels | Unavailable:
    """Return the packaged kernels that are installed for torch's CUDA version and for `device`, or
    the reason why there are none."""
    if cuda_version is None:
        return Unavailable("torch is built without CUDA")
    major = cuda_version.split(".")[0]
    found = importlib.util.find_spec(f"penstock_cuda{major}")
    if found is None or found.origin is None:
        return Unavailable(f"penstock-cuda{major} is not installed")
    index = torch.device(device).index or 0
    high, low = torch.cuda.get_device_capability(index)
    target = target_for(10 * high + low)
    if target is None:
        return Unavailable(f"there are no kernels for compute capability {high}.{low}")
    folder = Path(found.origin).parent
    return open_packaged(folder / FILE, folder / archive_name(target), index)


def open_packaged(
    library: Path, archive: Path, device: int = 0, driver: str = DRIVER
) -> PackagedKernels | Unavailable:
    """Open an archive of cubins. Return its kernels, which are launched through the CUDA library in
    the file `library`, or the reason why they cannot be used."""
    if not archive.exists():
        return Unavailable(f"{archive.name} is not installed")
    try:
        number = ctypes.CDLL(str(library)).penstock_cuda_abi()
        if number != ABI:
            return Unavailable(f"the CUDA library has ABI {number}, not {ABI}")
        launcher = DriverLauncher(library, device, driver)
        return PackagedKernels(Archive(archive), launcher, current_stream)
    except (OSError, AttributeError, RuntimeError, ValueError) as error:
        return Unavailable(str(error))
