"""Cohere (Command R, Aya): LayerNorms without biases, attention and feed-forward side by side, a
rotary embedding of neighbouring components (2i, 2i + 1) and scaled logits. The GGUF architecture is
`command-r`."""

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
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' CohereConfig."""

    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    logit_scale: float | None = 0.0625
    rope_theta: float | None = 5e5
    tie_word_embeddings: bool | None = True
    use_qk_norm: bool | None = False


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    if config.use_qk_norm:
        raise ModelError(f"{where}: use_qk_norm true is not supported")
    plain = decoder_spec(config, where, uniform_layers(config, where))
    plain = replace(plain, norm_eps=config.layer_norm_eps, norm_kind="layer")
    return with_scaled_logits(plain, config.logit_scale or 1.0, where)


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. A scale of 0 means "not set"."""
    return with_gguf_scale(file, gguf_decoder_spec(file, family_keys=frozenset({"logit_scale"})))


def with_gguf_scale(file: GgufFile, plain: DecoderSpec) -> DecoderSpec:
    """Return the spec `plain` of a GGUF file with parallel blocks and the file's factor on the
    logits."""
    scale = file.real(f"{plain.architecture}.logit_scale", 0.0) or 1.0
    return with_scaled_logits(replace(plain, qk_norm=False), scale, str(file.path))


def with_scaled_logits(plain: DecoderSpec, scale: float, where: str) -> DecoderSpec:
    """Return `plain` with parallel blocks, an interleaved rope and the factor `scale` on the
    logits. Raises ModelError that starts with `where` if the factor is not positive."""
    if not 0 < scale < math.inf:
        raise ModelError(f"{where}: logit scale {scale} is not positive")
    return replace(plain, parallel=True, interleaved_rope=True, logit_scale=scale)


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the key of the factor on the logits."""
    return {"logit_scale": float(spec.logit_scale)}


FAMILY = Family(
    hf=HfDecoder("cohere", "CohereForCausalLM", Config, spec),
    gguf=GgufDecoder("command-r", gguf_spec, keys=gguf_keys),
)
