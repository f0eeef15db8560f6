"""DeepSeek V3 and R1, Kimi K2, Moonlight: latent attention, and mixtures of experts with shared
experts and groups, chosen by sigmoids with a bias. GGUF files of other models with latent attention
have this architecture too."""

from __future__ import annotations

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder
from penstock.models.configuration.gguf_latent import gguf_latent_keys, gguf_latent_spec
from penstock.models.configuration.hf_latent import HfLatentConfig, latent_decoder_spec
from penstock.models.configuration.hf_shared_experts import mixture_layers, shared_mixture
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_LATENT_NAMES, HF_LATENT_NAMES


class Config(HfLatentConfig):
    """The keys of config.json, with the defaults of transformers' DeepseekV3Config."""

    max_position_embeddings: int = 4096
    n_routed_experts: int | None = 256
    n_shared_experts: int | None = 1
    num_experts_per_tok: int | None = 8
    moe_intermediate_size: int | None = 2048
    routed_scaling_factor: float = 2.5
    n_group: int | None = 8
    topk_group: int | None = 4
    norm_topk_prob: bool | None = True
    first_k_dense_replace: int | None = 3
    num_nextn_predict_layers: int | None = 1


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    experts = shared_mixture(config, where, "sigmoid", best_of_group=2)
    return latent_decoder_spec(config, where, mixture_layers(config, where, experts))


FAMILY = Family(
    hf=HfDecoder("deepseek_v3", "DeepseekV3ForCausalLM", Config, spec, HF_LATENT_NAMES),
    gguf=GgufDecoder("deepseek2", gguf_latent_spec, GGUF_LATENT_NAMES, keys=gguf_latent_keys),
)
