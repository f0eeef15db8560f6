"""Names this machine's GPUs without their libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NVIDIA: Final = Path("/proc/driver/nvidia/gpus")


def gpu_names(folder: Path = NVIDIA) -> list[str]:
    """Return the names of the NVIDIA GPUs, in the order of their bus addresses; [] if the driver
    lists none. `folder`: a folder like /proc/driver/nvidia/gpus."""
    found = []
    for file in sorted(folder.glob("*/information")):
        lines = file.read_text(errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
        found += names[:1]
    return found
