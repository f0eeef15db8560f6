"""Measured peak rates of this machine, to which every figure here is compared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from penstock.kernels.registry import Cost

_SOURCE = Path(__file__).with_name("roofline.cc")


@dataclass(frozen=True, slots=True)
class Roofline:
    """Peak rates of all usable cores together. Operations per second count a multiply-add as two;
    `read_bytes`: bytes per second by the size of the working set in bytes."""

    threads: int
    float_operations: float
    integer_operations: float
    read_bytes: dict[int, float]

    def read_rate(self, working_set_bytes: int) -> float:
        """Return the bytes per second of the memory level that holds such a working set."""
        sizes = sorted(self.read_bytes)
        size = next((size for size in sizes if size >= working_set_bytes), sizes[-1])
        return self.read_bytes[size]

    def best(self, other: Roofline) -> Roofline:
        """Return the higher value of each figure: on a shared machine a peak is only ever
        missed."""
        sizes = self.read_bytes.keys() & other.read_bytes.keys()
        return Roofline(
            self.threads,
            max(self.float_operations, other.float_operations),
            max(self.integer_operations, other.integer_operations),
            {size: max(self.read_bytes[size], other.read_bytes[size]) for size in sizes},
        )

    def floor_s(self, cost: Cost, peak_operations: float) -> float:
        """Return the least time that any implementation can reach, given the peak that applies."""
        reading = cost.moved_bytes / self.read_rate(cost.moved_bytes)
        return max(reading, cost.operations / peak_operations)


def measure(seconds: float = 0.1) -> Roofline:
    """Compile the probe for this CPU and run it on every usable core.

    Raises FileNotFoundError without a C++ compiler, CalledProcessError if the probe fails.
    """
    compiler = next(
        (found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), ""
    )
    if not compiler:
        raise FileNotFoundError("the roofline needs a C++ compiler")
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "roofline"
        options = ["-std=c++20", "-O3", "-march=native", "-pthread"]
        subprocess.run([compiler, *options, str(_SOURCE), "-o", str(probe)], check=True)
        command = [str(probe), str(threads), str(seconds)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(text)
    found["read_bytes"] = {int(size): rate for size, rate in found["read_bytes"].items()}
    return Roofline(**found)


if __name__ == "__main__":
    print(measure())
