"""Which device computes: decided once, without importing torch to find out that there is no GPU."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings

DRIVER = "libcuda.so.1"


def choose_device(settings: EngineSettings) -> str:
    """ "cpu" or "cuda:N". "auto" takes the first GPU where the driver shows one and torch is
    installed. Raises ModelError where a GPU is asked for and cannot serve."""
    wanted, of_cpu = settings.device, settings.kernels in ("native", "reference")
    if wanted == "auto" and settings.kernels == "triton":
        wanted = "cuda"
    if wanted == "cpu" and settings.kernels == "triton":
        raise ModelError("kernels triton are of a GPU; device is cpu")
    if wanted == "cpu" or (wanted == "auto" and of_cpu):
        return "cpu"
    if wanted == "auto":
        return "cuda:0" if driver_devices() and find_spec("torch") else "cpu"
    if of_cpu:
        raise ModelError(f"kernels {settings.kernels} are of the CPU; device is {wanted}")
    _, _, number = wanted.partition(":")
    index, count = int(number or 0), driver_devices()
    if index >= count:
        raise ModelError(f"device is {wanted}, and the driver shows {count} CUDA devices")
    if not find_spec("torch"):
        raise ModelError(f"device is {wanted}, which needs torch: pip install 'torch>=2.11'")
    return f"cuda:{index}"


def rank_devices(settings: EngineSettings, first: str) -> tuple[str, ...]:
    """The devices of a model that is divided among several, from `first` on, what `choose_device`
    gave. Raises ModelError where there are not so many."""
    wanted = settings.tensor_parallel
    if wanted == 1:
        return (first,)
    if first == "cpu":
        raise ModelError(
            f"tensor_parallel is {wanted}, and the device is a CPU: threads share one model there; "
            f"it needs {wanted} GPUs"
        )
    begin, count = int(first.partition(":")[2]), driver_devices()
    if begin + wanted > count:
        raise ModelError(
            f"tensor_parallel is {wanted}, from {first} on, and the driver shows {count} CUDA "
            "devices"
        )
    return tuple(f"cuda:{begin + rank}" for rank in range(wanted))


def driver_devices(driver: str = DRIVER) -> int:
    """How many CUDA devices the driver shows; 0 without one."""
    try:
        library = ctypes.CDLL(driver)
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if library.cuInit(0) != 0 or library.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
