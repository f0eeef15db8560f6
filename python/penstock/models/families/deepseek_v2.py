"""DeepSeek V2, V2.5 and V2-Lite: latent attention, and mixtures of experts with shared experts,
chosen by a softmax over all experts."""

from __future__ import annotations

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, HfDecoder
from penstock.models.configuration.hf_latent import HfLatentConfig, latent_decoder_spec
from penstock.models.configuration.hf_shared_experts import mixture_layers, shared_mixture
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_LATENT_NAMES


class Config(HfLatentConfig):
    """The keys of config.json, with the defaults of transformers' DeepseekV2Config. `topk_method`:
    "greedy" ignores the groups of experts. `norm_topk_prob` has no effect, as in transformers: the
    shares are the scores times `routed_scaling_factor`."""

    max_position_embeddings: int = 2048
    n_routed_experts: int | None = 64
    n_shared_experts: int | None = 2
    moe_intermediate_size: int | None = 1407
    topk_method: str | None = "greedy"


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. Raises ModelError naming the key
    at fault."""
    config = msgspec.structs.replace(config, norm_topk_prob=None)
    if config.topk_method == "greedy":
        config = msgspec.structs.replace(config, n_group=None, topk_group=None)
    elif config.topk_method != "group_limited_greedy":
        raise ModelError(
            f"{where}: topk_method {config.topk_method!r} is not supported, only greedy,"
            " group_limited_greedy"
        )
    experts = shared_mixture(config, where, "softmax", best_of_group=1)
    return latent_decoder_spec(config, where, mixture_layers(config, where, experts))


FAMILY = Family(
    hf=HfDecoder("deepseek_v2", "DeepseekV2ForCausalLM", Config, spec, HF_LATENT_NAMES),
    gguf_of="deepseek2",
)
