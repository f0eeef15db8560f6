"""Qwen3.5: gated delta nets, and attention with a gate in every fourth layer. Its vision tower and
media are those of Qwen3-VL without DeepStack."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder, MediaFamily
from penstock.models.configuration.gated_delta import (
    DeltaConfig,
    delta_decoder,
    gguf_delta_decoder,
    gguf_delta_keys,
)
from penstock.models.configuration.qwen_vl import read_qwen_media, vision_keys
from penstock.models.decoder.mixers.gated_delta import TILED, DeltaLayout
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES, MtpNames
from penstock.models.families import qwen3_vl
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile


class Keys(qwen3_vl.Keys):
    """The keys of `vision_config`."""

    deepstack_visual_indexes: tuple[int, ...] = ()


def read_folder(folder: Path) -> MediaSpec:
    """See MediaFamily."""
    keys, where = vision_keys(folder, Keys)
    media = read_qwen_media(folder, keys, qwen3_vl.DEFAULTS)
    return qwen3_vl.qwen3_media(keys, where, media)


def spec(config: DeltaConfig, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes."""
    return delta_decoder(config, where, DeltaLayout())


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file."""
    return gguf_delta_decoder(file, TILED)


NAMES = replace(
    HF_NAMES,
    mixer={
        "qkv": "linear_attn.in_proj_qkv.weight",
        "z": "linear_attn.in_proj_z.weight",
        "b": "linear_attn.in_proj_b.weight",
        "a": "linear_attn.in_proj_a.weight",
        "conv": "linear_attn.conv1d.weight",
        "decay": "linear_attn.A_log",
        "dt_bias": "linear_attn.dt_bias",
        "norm": "linear_attn.norm.weight",
        "out": "linear_attn.out_proj.weight",
    },
    ignored=re.compile(r".*\.rotary_emb\.inv_freq|(model\.)?mtp\..*"),
    mtp=MtpNames(
        root="mtp.",
        layer="layers.0.",
        fc="fc.weight",
        embedding_norm="pre_fc_norm_embedding.weight",
        hidden_norm="pre_fc_norm_hidden.weight",
        norm="norm.weight",
        embedding="",
        head="",
    ),
)
"""The tensors `mtp.*` predict further tokens."""
GGUF_DELTA_NAMES = replace(
    GGUF_NAMES,
    mlp_norm="post_attention_norm",
    mixer={
        "qkv": "attn_qkv.weight",
        "z": "attn_gate.weight",
        "b": "ssm_beta.weight",
        "a": "ssm_alpha.weight",
        "conv": "ssm_conv1d.weight",
        "decay": "ssm_a",
        "dt_bias": "ssm_dt.bias",
        "norm": "ssm_norm.weight",
        "out": "ssm_out.weight",
    },
)
FAMILY = Family(
    hf=HfDecoder(
        "qwen3_5",
        "Qwen3_5ForCausalLM",
        DeltaConfig,
        spec,
        NAMES,
        model_type="qwen3_5_text",
        headless="Qwen3_5TextModel",
        is_reranker=False,
    ),
    gguf=GgufDecoder("qwen35", gguf_spec, GGUF_DELTA_NAMES, keys=gguf_delta_keys),
    media=MediaFamily("Qwen3_5ForConditionalGeneration", read_folder),
)
