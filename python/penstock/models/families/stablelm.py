"""StableLM: LayerNorms, a rotary embedding of the first components of each head, and in some models
attention and feed-forward side by side."""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_keys import Keys
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import partial_rotary_decoder_spec
from penstock.models.configuration.hf_layers import uniform_layers
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' StableLmConfig."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 4096
    layer_norm_eps: float = 1e-5
    partial_rotary_factor: float | None = 0.25
    use_qkv_bias: bool = False
    qk_layernorm: bool = False
    use_parallel_residual: bool = False


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    if config.qk_layernorm:
        raise ModelError(f"{where}: qk_layernorm true is not supported")
    plain = partial_rotary_decoder_spec(config, where, uniform_layers(config, where))
    return replace(
        plain,
        norm_eps=config.layer_norm_eps,
        norm_kind="layer",
        norm_bias=True,
        qkv_bias=config.use_qkv_bias,
        output_bias=False,
        mlp_bias=False,
        parallel=config.use_parallel_residual,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file. Models with parallel blocks have no norm of the
    feed-forward's input."""
    plain = gguf_decoder_spec(file, family_keys=frozenset({"use_parallel_residual"}))
    return replace(plain, qk_norm=False, parallel="blk.0.ffn_norm.weight" not in file.tensors)


def gguf_keys(spec: DecoderSpec) -> Keys:
    """Return the key of parallel blocks, which llama.cpp reads."""
    return {"use_parallel_residual": spec.parallel}


FAMILY = Family(
    hf=HfDecoder("stablelm", "StableLmForCausalLM", Config, spec),
    gguf=GgufDecoder("stablelm", gguf_spec, keys=gguf_keys),
)
