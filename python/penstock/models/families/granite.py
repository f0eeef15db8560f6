"""Granite: Llama with multipliers on embeddings, attention scores, residuals and logits.

The spec has no residual multiplier m. Granite adds m times each block's result to its residual
stream h; the model here adds the result once to the stream g = h / m. RMSNorm maps g and h to the
same values if its eps is divided by m^2 for g. The embeddings, with which g starts, are divided by
m.
"""

from __future__ import annotations

import math
from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.mixers.mamba2 import Mamba2Spec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.spec_limits import check_factor
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' GraniteConfig."""

    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    plain = decoder_spec(config, where, uniform_layers(config, where))
    return with_multipliers(
        replace(plain, attention_scale=config.attention_multiplier),
        where,
        embedding=config.embedding_multiplier,
        residual=config.residual_multiplier,
        logits_divisor=config.logits_scaling,
    )


def gguf_spec(file: GgufFile, family_keys: frozenset[str] = frozenset()) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. A scale of 0 means "not set". If
    `rope.scaling.finetuned` is false, the layers have no rotary embedding. `family_keys`: see
    `gguf_decoder_spec`."""
    name = file.text("general.architecture")
    plain = gguf_decoder_spec(file, family_keys | {"residual_scale", "logit_scale"})
    rotary = file.boolean(f"{name}.rope.scaling.finetuned") is not False
    layers = tuple(replace(layer, rotary=rotary) for layer in plain.layers)
    return with_multipliers(
        replace(plain, layers=layers, qk_norm=False),
        str(file.path),
        embedding=plain.embedding_scale,
        residual=file.real(f"{name}.residual_scale", 0.0) or 1.0,
        logits_divisor=file.real(f"{name}.logit_scale", 0.0) or 1.0,
    )


def with_multipliers(
    plain: DecoderSpec, where: str, *, embedding: float, residual: float, logits_divisor: float
) -> DecoderSpec:
    """Return `plain` with the factors on embeddings (`embedding`) and on blocks' results
    (`residual`), and the divisor of the logits. Raises ModelError that starts with `where` if one
    of them is not positive."""
    assert plain.norms == "pre" and not plain.qk_norm, "these norms do not read the stream"
    given = {
        "embedding multiplier": embedding,
        "residual multiplier": residual,
        "divisor of logits": logits_divisor,
    }
    for name, value in given.items():
        check_factor(value, name, where)
        if value < 0:
            raise ModelError(f"{where}: {name} {value} is not positive")
    return replace(
        plain,
        embedding_scale=embedding / residual,
        norm_eps=plain.norm_eps / residual**2,
        logit_scale=1 / logits_divisor,
    )


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the keys of the multipliers. The residual multiplier is known only where another eps
    tells it; otherwise it stays part of the eps and of the embedding's multiplier, which computes
    the same."""
    inner = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, Mamba2Spec)]
    residual = math.sqrt(inner[0].norm_eps / spec.norm_eps) if inner else 1.0
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    return {
        "attention.layer_norm_rms_epsilon": float(spec.norm_eps * residual**2),
        "attention.scale": float(scale),
        "embedding_scale": float(spec.embedding_scale * residual),
        "residual_scale": float(residual),
        "logit_scale": float(1 / spec.logit_scale),
        "rope.scaling.finetuned": all(layer.rotary for layer in spec.layers),
    }


FAMILY = Family(
    hf=HfDecoder("granite", "GraniteForCausalLM", Config, spec),
    gguf=GgufDecoder("granite", gguf_spec, permuted_qk=True, keys=gguf_keys),
)
