"""Reads the calibrated scales of an FP8 KV cache that folders of compressed-tensors and modelopt
hold: `k_scale` and `v_scale` of each layer, for all KV heads or one per head. A key is an 8-bit
float times `k_scale`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder

Part = Literal["k", "v"]
Scales = Mapping[tuple[int, Part], npt.NDArray[np.float32]]
"""(layer, part) -> [1] or [K]. A part without calibration is missing."""

_NAME: Final = re.compile(
    r"(?:(?:model|language_model)\.)*layers\.(\d+)\.\w+\.(?:[kv]_proj\.)?([kv])_scale"
)


class _CacheScheme(msgspec.Struct):
    num_bits: int = 8
    type: str = "float"


class _Quantization(msgspec.Struct):
    kv_cache_scheme: _CacheScheme | None = None


class _Config(msgspec.Struct):
    quantization_config: _Quantization | None = None


def read_cache_scales(folder: Path) -> Scales:
    """Return the scales of a folder. Scales that `kv_cache_scheme` in config.json declares for
    another type than 8-bit floats are not read. Raises ModelError naming a scale that is not
    positive and finite."""
    config = read_json(folder / "config.json", _Config).quantization_config
    scheme = None if config is None else config.kv_cache_scheme
    if scheme is not None and (scheme.num_bits, scheme.type) != (8, "float"):
        return {}
    file = SafetensorsFolder(folder)
    found: dict[tuple[int, Part], npt.NDArray[np.float32]] = {}
    for name in file.tensors:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        values = np.asarray(file.floats(name), np.float32).reshape(-1)
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise ModelError(f"{folder}: {name} must be positive and finite")
        part: Part = "k" if match[2] == "k" else "v"
        found[int(match[1]), part] = values
    return found
