"""The parts of config.json and GGUF files that the text models of several Gemma families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.decoder.spec import LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES

C = TypeVar("C", bound="GemmaConfig")

NAMES: Final = replace(
    HF_NAMES,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
"""The names of the tensors of Gemma 2 and later."""

INPUT_NAMES: Final = replace(
    NAMES,
    router="router.proj",
    expert_scale="router.per_expert_scale",
    layer_parts={
        "layer_scalar": "layer_scalar",
        "input_gate": "per_layer_input_gate.weight",
        "input_projection": "per_layer_projection.weight",
        "input_norm": "post_per_layer_input_norm.weight",
        "dense_post_norm": "post_feedforward_layernorm_1.weight",
        "experts_norm": "pre_feedforward_layernorm_2.weight",
        "experts_post_norm": "post_feedforward_layernorm_2.weight",
        "router_scale": "router.scale",
    },
    model_parts={
        "input_table": "model.embed_tokens_per_layer.weight",
        "inputs_projection": "model.per_layer_model_projection.weight",
        "inputs_norm": "model.per_layer_projection_norm.weight",
    },
)
"""NAMES with the tensors of per-layer inputs and of experts beside the feed-forward."""

ALTUP_NAMES: Final = replace(
    INPUT_NAMES,
    layer_parts={
        **INPUT_NAMES.layer_parts,
        "altup_router": "altup.modality_router.weight",
        "altup_router_norm": "altup.router_norm.weight",
        "altup_prediction": "altup.prediction_coefs.weight",
        "altup_correction": "altup.correction_coefs.weight",
        "altup_scale": "altup.correct_output_scale",
        "laurel_left": "laurel.linear_left.weight",
        "laurel_right": "laurel.linear_right.weight",
        "laurel_norm": "laurel.post_laurel_norm.weight",
    },
    model_parts={
        **INPUT_NAMES.model_parts,
        "altup_projection": "model.altup_projections.{}.weight",
        "altup_unembedding": "model.altup_unembed_projections.{}.weight",
    },
)
"""INPUT_NAMES with the tensors of parallel residual streams."""

GGUF_INPUT_NAMES: Final = replace(
    GGUF_NAMES,
    expert_scale="ffn_down_exps.scale",
    layer_parts={
        "layer_scalar": "layer_output_scale.weight",
        "input_gate": "inp_gate.weight",
        "input_projection": "proj.weight",
        "input_norm": "post_norm.weight",
        "dense_post_norm": "post_ffw_norm_1.weight",
        "experts_norm": "pre_ffw_norm_2.weight",
        "experts_post_norm": "post_ffw_norm_2.weight",
        "router_scale": "ffn_gate_inp.scale",
    },
    model_parts={
        "input_table": "per_layer_token_embd.weight",
        "inputs_projection": "per_layer_model_proj.weight",
        "inputs_norm": "per_layer_proj_norm.weight",
    },
)
"""The names of the same tensors in GGUF files."""

GGUF_ALTUP_NAMES: Final = replace(
    GGUF_INPUT_NAMES,
    layer_parts={
        **GGUF_INPUT_NAMES.layer_parts,
        "altup_router": "altup_router.weight",
        "altup_router_norm": "altup_router_norm.weight",
        "altup_prediction": "altup_predict_coef.weight",
        "altup_correction": "altup_correct_coef.weight",
        "altup_scale": "altup_correct_scale.weight",
        "laurel_left": "laurel_l.weight",
        "laurel_right": "laurel_r.weight",
        "laurel_norm": "laurel_post_norm.weight",
    },
    model_parts={
        **GGUF_INPUT_NAMES.model_parts,
        "altup_projection": "altup_proj.weight",
        "altup_unembedding": "altup_unembd_proj.weight",
    },
)
"""The names of the same tensors as ALTUP_NAMES in GGUF files."""


class GemmaConfig(HfConfig):
    """The keys of config.json that all Gemma families since Gemma 2 have."""

    hidden_activation: str | None = "gelu_pytorch_tanh"
    tie_word_embeddings: bool | None = True
    final_logit_softcapping: float | None = None


def llama_keys(config: C, bidirectional: bool) -> C:
    """Return the config with the values of Gemma's keys under Llama's keys. `bidirectional`:
    whether tokens also attend to later tokens; if true, it overrides `is_causal`."""
    return msgspec.structs.replace(
        config,
        hidden_act=config.hidden_activation or config.hidden_act,
        is_causal=True if bidirectional else config.is_causal,
    )


def share_caches(layers: Sequence[LayerSpec], count: int, where: str) -> tuple[LayerSpec, ...]:
    """Return `layers`, of which the last `count` read the cache of the last earlier layer of their
    kind: with a sliding window, or without. Raises ModelError that starts with `where` and names
    the key if there is no such layer."""
    first = len(layers) - count
    if not 0 <= count < max(len(layers), 1):
        raise ModelError(f"{where} {count} is not in 0..{len(layers) - 1}")
    shared = list(layers)
    for index in range(first, len(layers)):
        slides = bool(layers[index].window)
        alike = [own for own in range(first) if bool(layers[own].window) == slides]
        if not alike:
            kind = "sliding_attention" if slides else "full_attention"
            raise ModelError(f"{where} {count}: no earlier layer has {kind}")
        own = replace(layers[index].attention, cache_of=alike[-1])
        shared[index] = replace(layers[index], attention=own)
    return tuple(shared)
