"""Reads RoPE and its scaling from the metadata of a GGUF file, and writes them."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.configuration.unsupported_keys import Neutral, refuse_unsupported
from penstock.models.decoder.rope import chunked_axes, frequency_factors, interleaved_axes
from penstock.models.decoder.rope_spec import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.spec_limits import MAX_WIDTH
from penstock.models.decoder.tensor_names import GGUF_NAMES, LONGROPE_FACTORS
from penstock.quant.gguf.gguf_file import GgufFile

# An ext_factor of -1 means "not set".
_YARN_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (1, -1)}
_LONGROPE_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (0, -1)}
_OTHER_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (0, -1), "attn_factor": (1,)}
_BETA_FAST: Final = 32.0
_BETA_SLOW: Final = 1.0


def gguf_rope_scaling(file: GgufFile, architecture: str) -> RopeScaling | None:
    """Return the RoPE scaling of the file, or None. A factor without a type means linear scaling;
    the older key `rope.scale_linear` is also read. A linear factor of 0 or 1 means no scaling.
    Raises ModelError naming the key that is not supported."""
    prefix = f"{architecture}.rope.scaling"
    factor = file.real(f"{prefix}.factor", file.real(f"{architecture}.rope.scale_linear", 0.0))
    kind = file.text(f"{prefix}.type", "linear")
    if kind == "longrope" or any(name in file.tensors for name in LONGROPE_FACTORS):
        return _longrope(file, architecture, factor)
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{file.path}: {prefix}.type {kind!r} is not supported")
    if factor < 0:
        raise ModelError(f"{file.path}: {prefix}.factor {factor} is negative")
    if kind == "yarn":
        return _yarn(file, architecture, factor or 1.0)
    refuse_unsupported(str(file.path), file.metadata, _OTHER_NEUTRAL, f"{prefix}.")
    return LinearScaling(factor) if kind == "linear" and factor not in (0.0, 1.0) else None


def gguf_rope_axes(file: GgufFile, architecture: str) -> tuple[int, ...]:
    """Return `RopeSpec.axes`: () if the file has no `rope.dimension_sections`. The architectures of
    the Qwen3 family interleave the axes."""
    key = f"{architecture}.rope.dimension_sections"
    if key not in file.metadata:
        return ()
    given = file.numbers(key)
    sections = given.tolist() if len(given) in (3, 4) and given.dtype.kind in "iu" else [-1]
    if not 0 <= min(sections) <= max(sections) <= MAX_WIDTH or any(sections[3:]):
        raise ModelError(f"{file.path}: {key} {given.tolist()[:4]} is not a list of three sizes")
    axes = interleaved_axes if architecture.startswith("qwen3") else chunked_axes
    return axes(sections[:3])


def _yarn(file: GgufFile, architecture: str, factor: float) -> YarnScaling:
    prefix = f"{architecture}.rope.scaling"
    refuse_unsupported(str(file.path), file.metadata, _YARN_NEUTRAL, f"{prefix}.")
    context = file.integer(f"{architecture}.context_length")
    own_factor = file.real(f"{prefix}.attn_factor", 1.0)
    return YarnScaling(
        factor=factor,
        original_context=file.integer(f"{prefix}.original_context_length", context),
        attention_factor=own_factor * _growth(factor),
        beta_fast=file.real(f"{prefix}.yarn_beta_fast", _BETA_FAST),
        beta_slow=file.real(f"{prefix}.yarn_beta_slow", _BETA_SLOW),
    )


def _longrope(file: GgufFile, architecture: str, factor: float) -> LongRopeScaling:
    prefix = f"{architecture}.rope.scaling"
    missing = [name for name in LONGROPE_FACTORS if name not in file.tensors]
    if missing:
        raise ModelError(f"{file.path}: {prefix}.type longrope: tensor {missing[0]} is missing")
    if factor not in (0.0, 1.0):
        raise ModelError(f"{file.path}: {prefix}.factor {factor} is not supported with longrope")
    refuse_unsupported(str(file.path), file.metadata, _LONGROPE_NEUTRAL, f"{prefix}.")
    short, long = (tuple(file.vector(name).tolist()) for name in LONGROPE_FACTORS)
    context = file.integer(f"{architecture}.context_length")
    original = file.integer(f"{prefix}.original_context_length", context)
    return LongRopeScaling(short, long, original, file.real(f"{prefix}.attn_factor", 1.0))


def _growth(factor: float) -> float:
    """Return the factor of cosines and sines that YaRN's factor implies."""
    return 1 + 0.1 * math.log(max(factor, 1.0))


def gguf_rope_keys(spec: DecoderSpec) -> dict[str, Any]:
    """Return the keys of RoPE and its scaling, without the "<architecture>." prefix. Factors of
    frequencies are tensors: see `gguf_rope_tensors`."""
    rope, local = spec.rope, spec.local_rope
    keys: dict[str, Any] = {
        "rope.dimension_count": rope.rotary_dim,
        "rope.freq_base": float(rope.theta),
    }
    if local is not None and local.theta != rope.theta:
        keys["rope.freq_base_swa"] = float(local.theta)
    match rope.scaling:
        case LinearScaling(factor):
            keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(factor)}
        case YarnScaling():
            keys |= _yarn_keys(rope.scaling)
        case LongRopeScaling(_, _, original, factor):
            keys["rope.scaling.original_context_length"] = original
            keys["rope.scaling.attn_factor"] = float(factor)
    return keys


def gguf_axis_keys(rope: RopeSpec) -> dict[str, Any]:
    """Return the key of `RopeSpec.axes`, if there are axes."""
    if not rope.axes:
        return {}
    sections = [rope.axes.count(axis) for axis in range(3)]
    return {"rope.dimension_sections": np.array([*sections, 0], np.int32)}


def _yarn_keys(scaling: YarnScaling) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(scaling.factor),
        "rope.scaling.original_context_length": scaling.original_context,
    }
    own = scaling.attention_factor / _growth(scaling.factor)
    if not math.isclose(own, 1.0, rel_tol=1e-6):
        keys["rope.scaling.attn_factor"] = own
    if scaling.beta_fast != _BETA_FAST:
        keys["rope.scaling.yarn_beta_fast"] = float(scaling.beta_fast)
    if scaling.beta_slow != _BETA_SLOW:
        keys["rope.scaling.yarn_beta_slow"] = float(scaling.beta_slow)
    return keys


def gguf_rope_tensors(rope: RopeSpec) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors with factors of frequencies, by name."""
    if isinstance(rope.scaling, LongRopeScaling):
        factors = rope.scaling.short, rope.scaling.long
        return {
            name: np.array(own, np.float32)
            for name, own in zip(LONGROPE_FACTORS, factors, strict=True)
        }
    if not isinstance(rope.scaling, Llama3Scaling) and rope.turning_pairs is None:
        return {}
    assert GGUF_NAMES.rope_factors is not None
    return {GGUF_NAMES.rope_factors: frequency_factors(rope)}
