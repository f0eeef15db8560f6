"""GLM-4.7-Flash: DeepSeek V3 without groups of experts."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_latent import HfLatentConfig, latent_decoder_spec
from penstock.models.configuration.hf_layers import num_layers
from penstock.models.configuration.hf_shared_experts import mixture_layers, shared_mixture
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_LATENT_NAMES


class Config(HfLatentConfig):
    """The keys of config.json, with the defaults of transformers' Glm4MoeLiteConfig.
    `mlp_layer_types`: for each layer "dense" or "sparse"."""

    max_position_embeddings: int = 202_752
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 192
    v_head_dim: int | None = 256
    n_routed_experts: int | None = 64
    n_shared_experts: int | None = 1
    num_experts_per_tok: int | None = 4
    moe_intermediate_size: int | None = 1536
    routed_scaling_factor: float = 1.8
    norm_topk_prob: bool | None = True
    first_k_dense_replace: int | None = 1
    mlp_layer_types: list[str] | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    experts = shared_mixture(config, where, "sigmoid", best_of_group=2)
    return latent_decoder_spec(config, where, _mixtures(config, where, experts))


def _mixtures(config: Config, where: str, experts: ExpertsSpec) -> list[ExpertsSpec | None]:
    """Return the mixture of each layer, None for a dense layer."""
    types, layers = config.mlp_layer_types, num_layers(config, where)
    if types is None:
        return mixture_layers(config, where, experts)
    if len(types) != layers:
        raise ModelError(f"{where}: mlp_layer_types has {len(types)} entries for {layers} layers")
    unknown = set(types) - {"dense", "sparse"}
    if unknown:
        raise ModelError(f"{where}: mlp_layer_types: {sorted(unknown)} are not supported")
    return [experts if kind == "sparse" else None for kind in types]


FAMILY = Family(
    hf=HfDecoder("glm4_moe_lite", "Glm4MoeLiteForCausalLM", Config, spec, HF_LATENT_NAMES),
    gguf_of="deepseek2",
)
