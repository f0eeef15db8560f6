"""Selects the variants of the CUDA library's kernels by compute capability.

`kernels/tuning/cuda.json` maps capability -> setting -> value. All variants give the same results;
a run of `bench/device` decides which one is fastest. `csrc/cuda/tuning.h` explains the values.
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
"""Setting -> its possible values. The first value is the default and works on every GPU. The order
of the settings is the order of `Setting` in csrc/cuda/tuning.h."""

DEFAULTS = {name: values[0] for name, values in VALUES.items()}

OF_OPS: dict[str, tuple[str, ...]] = {
    "linear": ("linear_loads",),
    "attention": ("decode_programs",),
    "sample": ("sample_loads",),
}
"""Op -> the settings that select the variant of its kernel."""

EMULATED_CAPABILITY = 90
"""The emulation runs the kernels of compute capability 9.0."""


@cache
def tuning_of(capability: int) -> dict[str, int]:
    """Return setting -> value for GPUs of compute capability `capability` (90 for 9.0)."""
    table: dict[str, dict[str, int]] = json.loads(TABLE.read_text())
    chosen = table.get(str(capability), {})
    unknown = sorted(chosen.keys() - DEFAULTS.keys())
    assert not unknown, f"{TABLE.name} has settings that do not exist: {unknown}"
    return DEFAULTS | chosen
