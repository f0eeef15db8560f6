"""Chooses the device of a model, without importing torch on a machine without a GPU."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings

DRIVER = "libcuda.so.1"


def choose_device(settings: EngineSettings) -> str:
    """Return "cpu" or "cuda:N" for the settings.

    The device "auto" becomes the first GPU if the driver reports one and torch is installed. Raises
    ModelError if the settings ask for a GPU that cannot be used.
    """
    wanted, cpu_kernels = settings.device, settings.kernel_backend in ("native", "reference")
    if wanted == "auto" and settings.kernel_backend == "triton":
        wanted = "cuda"
    if wanted == "cpu" and settings.kernel_backend == "triton":
        raise ModelError("kernels is triton, which needs a GPU, but device is cpu")
    if wanted == "cpu" or (wanted == "auto" and cpu_kernels):
        return "cpu"
    if wanted == "auto":
        return "cuda:0" if driver_devices() and find_spec("torch") else "cpu"
    if cpu_kernels:
        raise ModelError(
            f"kernels is {settings.kernel_backend}, which needs the CPU, but device is {wanted}"
        )
    _, _, number = wanted.partition(":")
    index, count = int(number or 0), driver_devices()
    if index >= count:
        raise ModelError(f"device is {wanted}, but the driver reports {count} CUDA devices")
    if not find_spec("torch"):
        raise ModelError(f"device is {wanted}, which needs torch: pip install 'torch>=2.11'")
    return f"cuda:{index}"


def rank_devices(settings: EngineSettings, first: str) -> tuple[str, ...]:
    """Return the devices of a tensor-parallel model, one per rank. `first`: the first device, from
    `choose_device`. Raises ModelError if there are too few devices."""
    wanted = settings.tensor_parallel_size
    if wanted == 1:
        return (first,)
    if first == "cpu":
        raise ModelError(
            f"tensor_parallel_size is {wanted}, but the device is the CPU, where all threads share"
            f" one model; it needs {wanted} GPUs"
        )
    begin, count = int(first.partition(":")[2]), driver_devices()
    if begin + wanted > count:
        raise ModelError(
            f"tensor_parallel_size is {wanted}, starting with {first}, but the driver reports"
            f" {count} CUDA devices"
        )
    return tuple(f"cuda:{begin + rank}" for rank in range(wanted))


def driver_devices(driver: str = DRIVER) -> int:
    """Return the number of CUDA devices that the driver reports; 0 without a driver."""
    try:
        library = ctypes.CDLL(driver)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
