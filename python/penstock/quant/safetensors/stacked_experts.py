"""The names of stacked experts. A stack [E, N, C] is a parameter of its own, not the weight of a
module, so that the names of its scales have an underscore instead of a dot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.quant.checkpoint import TensorInfo
from penstock.quant.safetensors.safetensors_file import FLOAT8, FLOAT8_E5M2

_QUANTIZED: Final = (FLOAT8, FLOAT8_E5M2, "U8", "I8")
_STACK: Final = re.compile(r".*experts\.(?:gate_up|gate|up|down)_proj")
_PARTS: Final = {
    "": "weight",
    "_weight_scale": "weight_scale",
    "_weight_scale_2": "weight_scale_2",
    "_weight_scale_inv": "weight_scale_inv",
    "_scale_inv": "weight_scale_inv",
    "_scale": "weight_scale",
    "_input_scale": "input_scale",
    "_activation_scale": "input_scale",
}
"""The ends of the names: modelopt has those with `weight`, transformers `_scale_inv`, and
fbgemm_fp8 `_scale`."""


def stacked_names(tensors: Mapping[str, TensorInfo]) -> dict[str, str]:
    """Return for each tensor of a quantized stack the name that it would have as part of a
    module."""
    return dict(_renamed(tensors))


def _renamed(tensors: Mapping[str, TensorInfo]) -> Iterable[tuple[str, str]]:
    for name, info in tensors.items():
        if len(info.shape) == 3 and info.type_name in _QUANTIZED and _STACK.fullmatch(name):
            for ending, part in _PARTS.items():
                if name + ending in tensors:
                    yield name + ending, f"{name}.{part}"
