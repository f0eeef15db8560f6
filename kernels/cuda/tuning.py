"""Chooses the form of each kernel of the CUDA library, by compute capability.

`kernels/tuning/cuda.json`: capability -> setting -> value. Every form gives the same results; a run
of `bench/device` decides which one is fastest. `csrc/cuda/tuning.h` explains the values.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parent.parent / "tuning" / "cuda.json"

VALUES: dict[str, tuple[int, ...]] = {
    "overlap": (0, 1),
    "linear_loads": (0, 1),
    "decode_programs": (2, 3, 4),
    "sample_loads": (0, 1),
}
"""The values of each setting, the default first: it serves on every GPU. The order is that of
`Setting` in csrc/cuda/tuning.h."""

DEFAULTS = {name: values[0] for name, values in VALUES.items()}

OF_OPS: dict[str, tuple[str, ...]] = {
    "linear": ("linear_loads",),
    "attention": ("decode_programs",),
    "sample": ("sample_loads",),
}
"""The settings that select the kernel of an op."""

EMULATED_CAPABILITY = 90
"""The emulation runs the kernels of compute capability 9.0."""


@cache
def tuning_of(capability: int) -> dict[str, int]:
    """Return the value of each setting on GPUs of a capability (90 for 9.0)."""
    table: dict[str, dict[str, int]] = json.loads(TABLE.read_text())
    chosen = table.get(str(capability), {})
    unknown = sorted(chosen.keys() - DEFAULTS.keys())
    assert not unknown, f"{TABLE.name} has settings that do not exist: {unknown}"
    return DEFAULTS | chosen
