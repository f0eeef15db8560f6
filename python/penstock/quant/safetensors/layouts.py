"""All layouts of quantized matrices in safetensors folders, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.quant.safetensors.bitsandbytes_layouts import BITSANDBYTES_LAYOUTS
from penstock.quant.safetensors.float4_layouts import FLOAT4_LAYOUTS
from penstock.quant.safetensors.hqq_layouts import HQQ_LAYOUTS
from penstock.quant.safetensors.integer_layouts import INTEGER_LAYOUTS
from penstock.quant.safetensors.layout import Layout
from penstock.quant.safetensors.quantization_schemes import LayoutName

LAYOUTS: Final[Mapping[LayoutName, Layout]] = {
    **INTEGER_LAYOUTS,
    **FLOAT4_LAYOUTS,
    **HQQ_LAYOUTS,
    **BITSANDBYTES_LAYOUTS,
}
