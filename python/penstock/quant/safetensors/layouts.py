"""All layouts of quantized matrices in safetensors folders, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.quant.safetensors.awq_layouts import AWQ_LAYOUTS
from penstock.quant.safetensors.bitsandbytes_layouts import BITSANDBYTES_LAYOUTS
from penstock.quant.safetensors.float4_layouts import FLOAT4_LAYOUTS
from penstock.quant.safetensors.hqq_layouts import HQQ_LAYOUTS
from penstock.quant.safetensors.integer_layouts import INTEGER_LAYOUTS
from penstock.quant.safetensors.layout import Layout
from penstock.quant.safetensors.marlin_layouts import MARLIN_LAYOUTS
from penstock.quant.safetensors.mlx_float_layouts import MLX_FLOAT_LAYOUTS
from penstock.quant.safetensors.quantization_schemes import LayoutName
from penstock.quant.safetensors.quark_layouts import QUARK_LAYOUTS
from penstock.quant.safetensors.torchao_layouts import TORCHAO_LAYOUTS

LAYOUTS: Final[Mapping[LayoutName, Layout]] = {
    **INTEGER_LAYOUTS,
    **AWQ_LAYOUTS,
    **MARLIN_LAYOUTS,
    **FLOAT4_LAYOUTS,
    **MLX_FLOAT_LAYOUTS,
    **HQQ_LAYOUTS,
    **BITSANDBYTES_LAYOUTS,
    **TORCHAO_LAYOUTS,
    **QUARK_LAYOUTS,
}
