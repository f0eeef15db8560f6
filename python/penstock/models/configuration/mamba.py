"""Reads Mamba2 blocks from config.json or GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.base.errors import ModelError
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_experts import HfExpertsConfig
from penstock.models.decoder.mixers.mamba2 import Mamba2Spec
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile


class MambaConfig(HfExpertsConfig):
    """The keys `mamba_*` of config.json, with the defaults of transformers' configs of Granite 4
    and Falcon-H1. `mamba_d_head`: a number, or "auto"."""

    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int | str = "auto"
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: list[Any] | None = None


def mamba_of(config: MambaConfig, where: str, inner: int | None = None) -> Mamba2Spec:
    """Return the block that `config` describes. `inner`: the number of inputs of all heads; None:
    `mamba_expand` times the width. Raises ModelError that starts with `where` and names the key."""
    heads = config.mamba_n_heads
    if inner is None:
        inner = config.mamba_expand * config.hidden_size
    if heads < 1 or inner < 1 or inner % heads:
        raise ModelError(
            f"{where}: mamba_n_heads {heads} does not divide the {inner} inputs of mamba_expand or"
            " mamba_d_ssm"
        )
    head_dim = config.mamba_d_head
    if head_dim == "auto":
        head_dim = inner // heads
    if head_dim != inner // heads:
        raise ModelError(f"{where}: mamba_d_head {head_dim} must be {inner // heads}")
    return Mamba2Spec(
        heads=heads,
        head_dim=inner // heads,
        groups=config.mamba_n_groups,
        state_dim=config.mamba_d_state,
        taps=config.mamba_d_conv,
        norm_eps=config.rms_norm_eps,
        conv_bias=config.mamba_conv_bias,
        in_bias=config.mamba_proj_bias,
        out_bias=config.mamba_proj_bias,
        dt_limits=time_step_limits(config.time_step_limit, where),
    )


def time_step_limits(given: Sequence[Any] | None, where: str) -> tuple[float, float]:
    """Return the limits of time steps in config.json: two numbers, of which transformers writes
    infinity as {"__float__": "Infinity"}. None: no limits. Raises ModelError that starts with
    `where`."""
    if given is None:
        return 0.0, math.inf
    values = [math.inf if entry == {"__float__": "Infinity"} else entry for entry in given]
    if len(values) != 2 or not all(isinstance(value, (int, float)) for value in values):
        raise ModelError(f"{where}: time_step_limit {list(given)} is not a pair of numbers")
    least, most = map(float, values)
    if not 0 <= least < most:
        raise ModelError(f"{where}: time_step_limit {list(given)} does not ascend from 0")
    return least, most


def gguf_mamba(file: GgufFile, norm_eps: float) -> Mamba2Spec:
    """Return the block that the metadata of a GGUF file describes. Raises ModelError naming the
    key."""
    prefix = f"{file.text('general.architecture')}.ssm."
    heads, inner = (file.integer(prefix + key) for key in ("time_step_rank", "inner_size"))
    groups = file.integer(f"{prefix}group_count", 1)
    if heads < 1 or inner % heads:
        raise ModelError(
            f"{file.path}: {prefix}inner_size {inner} is not a multiple of {prefix}time_step_rank"
            f" {heads}"
        )
    return Mamba2Spec(
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state_dim=file.integer(f"{prefix}state_size"),
        taps=file.integer(f"{prefix}conv_kernel"),
        norm_eps=norm_eps,
        conv_bias=any(name.endswith(".ssm_conv1d.bias") for name in file.tensors),
        in_bias=any(name.endswith(".ssm_in.bias") for name in file.tensors),
        out_bias=any(name.endswith(".ssm_out.bias") for name in file.tensors),
        norm="gate first" if any(map(_is_norm, file.tensors)) else "gate",
        form="gguf",
    )


def gguf_mamba_keys(spec: DecoderSpec) -> Keys:
    """Return the keys that `gguf_mamba` reads."""
    blocks = (layer.mixer for layer in spec.layers if isinstance(layer.mixer, Mamba2Spec))
    block = next(blocks, None)
    if block is None:
        return {}
    return {
        "ssm.conv_kernel": block.taps,
        "ssm.state_size": block.state_dim,
        "ssm.group_count": block.groups,
        "ssm.inner_size": block.inner_size,
        "ssm.time_step_rank": block.heads,
    }


def _is_norm(name: str) -> bool:
    return name.endswith(".ssm_norm.weight")


def mamba_names(block: str) -> dict[str, str]:
    """Return the names of the tensors of a block in a folder, by role. `block`: their prefix."""
    return {
        "into": f"{block}in_proj.weight",
        "into_bias": f"{block}in_proj.bias",
        "conv": f"{block}conv1d.weight",
        "conv_bias": f"{block}conv1d.bias",
        "decay": f"{block}A_log",
        "skip": f"{block}D",
        "dt_bias": f"{block}dt_bias",
        "norm": f"{block}norm.weight",
        "out": f"{block}out_proj.weight",
        "out_bias": f"{block}out_proj.bias",
    }


GGUF_MAMBA_NAMES = {
    "into": "ssm_in.weight",
    "into_bias": "ssm_in.bias",
    "conv": "ssm_conv1d.weight",
    "conv_bias": "ssm_conv1d.bias",
    "decay": "ssm_a",
    "skip": "ssm_d",
    "dt_bias": "ssm_dt.bias",
    "norm": "ssm_norm.weight",
    "out": "ssm_out.weight",
    "out_bias": "ssm_out.bias",
}
"""The names of the tensors of a block in a GGUF file, by role."""
