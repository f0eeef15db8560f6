"""Reads the RoPE scaling from the metadata of a GGUF file."""

from __future__ import annotations

import math
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.unsupported_keys import Neutral, refuse_unsupported
from penstock.models.decoder.rope import chunked_axes, interleaved_axes
from penstock.models.decoder.rope_spec import (
    LinearScaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)
from penstock.models.decoder.spec_limits import MAX_WIDTH
from penstock.models.decoder.tensor_names import LONGROPE_FACTORS
from penstock.quant.gguf.gguf_file import GgufFile

# An ext_factor of -1 means "not set".
_YARN_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (1, -1)}
_LONGROPE_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (0, -1)}
_OTHER_NEUTRAL: Final[Neutral] = {"yarn_ext_factor": (0, -1), "attn_factor": (1,)}


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
        attention_factor=own_factor * (1 + 0.1 * math.log(max(factor, 1.0))),
        beta_fast=file.real(f"{prefix}.yarn_beta_fast", 32.0),
        beta_slow=file.real(f"{prefix}.yarn_beta_slow", 1.0),
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
