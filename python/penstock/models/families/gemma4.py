"""Gemma 4: a sliding window in most layers, larger heads in the others, norms before and after each
block and on heads of queries, keys and values, and a number that scales the result of each layer;
in some models inputs per layer, shared caches, or experts beside the feed-forward. Its towers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import (
    AssistantFamily,
    Family,
    GgufDecoder,
    HfDecoder,
    MediaFamily,
)
from penstock.models.configuration.gemma4_assistant import (
    GGUF_ARCHITECTURE,
    AssistantConfig,
    read_assistant,
    read_gguf_assistant,
)
from penstock.models.configuration.gemma4_assistant import GGUF_NAMES as GGUF_ASSISTANT_NAMES
from penstock.models.configuration.gemma4_assistant import NAMES as ASSISTANT_NAMES
from penstock.models.configuration.gemma4_audio import gemma4_audio
from penstock.models.configuration.gemma4_media import (
    BUDGETS,
    MediaConfig,
    gemma4_processor,
    published_processor,
)
from penstock.models.configuration.gemma4_text import (
    Gemma4TextConfig,
    gguf_text_keys,
    gguf_text_spec,
    text_spec,
)
from penstock.models.configuration.gemma_text import GGUF_INPUT_NAMES, INPUT_NAMES
from penstock.models.configuration.media_config import read_model_config
from penstock.models.configuration.mmproj import (
    matrix_shape,
    read_vision,
    size,
    vision_names,
)
from penstock.models.decoder.assistant_spec import AssistantSpec
from penstock.models.media.image_config import HALF
from penstock.models.media.images_and_audio import ImagesAndAudio
from penstock.models.media.tiles import Normalization
from penstock.models.towers.gemma4_vision import Gemma4Names, Gemma4TowerSpec
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.tower import MediaSpec
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_weights import VisionNames
from penstock.quant.gguf.gguf_file import GgufFile

MOST_TOKENS: Final = BUDGETS[-1]
ROPE_THETA: Final = 100.0


class VisionConfig(msgspec.Struct):
    """The keys of `vision_config`, with the defaults of transformers' Gemma4VisionConfig."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 16
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    head_dim: int = 64
    hidden_activation: str = "gelu_pytorch_tanh"
    rms_norm_eps: float = 1e-6
    attention_bias: bool | None = False
    rope_parameters: dict[str, Any] | None = None
    pooling_kernel_size: int = 3
    patch_size: int = 16
    position_embedding_size: int = 10_240
    use_clipped_linears: bool = False
    standardize: bool = False

    def spec(self, where: str) -> VisionSpec:
        """Return the transformer. Raises ModelError naming the key at fault."""
        refused = {
            "num_key_value_heads": self.num_key_value_heads != self.num_attention_heads,
            "head_dim": self.head_dim * self.num_attention_heads != self.hidden_size,
            "hidden_activation": self.hidden_activation != "gelu_pytorch_tanh",
            "attention_bias": bool(self.attention_bias),
            "head_dim, which must be a multiple of 4,": self.head_dim % 4 != 0,
        }
        for key, is_refused in refused.items():
            if is_refused:
                value = getattr(self, key.partition(",")[0])
                raise ModelError(f"{where}: {key} {value!r} is not supported")
        for key in ("patch_size", "pooling_kernel_size", "position_embedding_size"):
            if getattr(self, key) < 1:
                raise ModelError(f"{where}: {key} is {getattr(self, key)}")
        spec = gemma4_vision(self)
        spec.check(where)
        return spec


NAMES: Final = VisionNames(
    roots=("model.vision_tower.", "vision_tower."),
    patch="patch_embedder.input_proj",
    layer="encoder.layers.{}.",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"),
    output="self_attn.o_proj.linear",
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    up=("mlp.gate_proj.linear", "mlp.up_proj.linear"),
    down="mlp.down_proj.linear",
    mlp_post_norm="post_feedforward_layernorm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
)
_OTHERS: Final = Gemma4Names(
    positions="vision_tower.patch_embedder.position_embedding_table",
    projection="embed_vision.embedding_projection",
    roots=("model.", ""),
)
_MMPROJ_OTHERS: Final = Gemma4Names("v.position_embd.weight", "mm.input_projection")
_STANDARDIZED: Final = replace(
    _OTHERS, deviation_bias="vision_tower.std_bias", deviation_scale="vision_tower.std_scale"
)


def gemma4_vision(config: VisionConfig) -> VisionSpec:
    """Return the transformer that `config` describes."""
    return VisionSpec(
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        patch_shape=(3 * config.patch_size**2,),
        norm_eps=config.rms_norm_eps,
        norm="rms",
        patch_bias=False,
        rotary_dim=config.head_dim,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        head_norms=True,
        axis_pairs=True,
        post_norms=True,
        attention_scale=1.0,
        clipped=config.use_clipped_linears,
        activation="gelu_tanh_mul",
    )


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, path = read_model_config(folder, MediaConfig)
    where = f"{path}: vision_config"
    try:
        vision = msgspec.convert(config.vision_config, VisionConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    spec = vision.spec(where)
    others = _STANDARDIZED if vision.standardize else _OTHERS
    theta = float((vision.rope_parameters or {}).get("rope_theta") or ROPE_THETA)
    tower = Gemma4TowerSpec(
        spec,
        NAMES,
        others,
        Normalization(HALF, HALF),
        theta,
        vision.position_embedding_size,
        vision.pooling_kernel_size,
        config.width(where),
        MOST_TOKENS * vision.pooling_kernel_size**2,
    )
    processor = gemma4_processor(
        folder, config, vision.patch_size, vision.pooling_kernel_size, "patches"
    )
    hearing = gemma4_audio(folder, keys, config.width(path), path)
    if hearing is None:
        return MediaSpec(processor, (tower,))
    recordings, conformer = hearing
    return MediaSpec(ImagesAndAudio(processor, recordings), (tower, conformer))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. See MediaFamily."""
    sizes, names = read_vision(file), _mmproj_names(file)
    pooling = size(file, "projector.scale_factor", VisionConfig().pooling_kernel_size)
    table = file.tensors.get(names.positions)
    if table is None or len(table.shape) != 3:
        raise ModelError(f"{file.path}: tensor {names.positions} is missing or has a wrong shape")
    vision = VisionConfig(
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
        rms_norm_eps=sizes.norm_eps,
        patch_size=sizes.patch,
        use_clipped_linears="v.blk.0.attn_q.input_min" in file.tensors,
    )
    spec = replace(vision.spec(str(file.path)), patch_shape=(3, sizes.patch, sizes.patch))
    width, _ = matrix_shape(file, f"{_MMPROJ_OTHERS.projection}.weight")
    others = _MMPROJ_OTHERS
    if "v.std_bias" in file.tensors:
        others = replace(others, deviation_bias="v.std_bias", deviation_scale="v.std_scale")
    tower = Gemma4TowerSpec(
        spec,
        names,
        others,
        Normalization(HALF, HALF),
        ROPE_THETA,
        table.shape[1],
        pooling,
        width,
        MOST_TOKENS * pooling**2,
    )
    processor = published_processor(sizes.patch, pooling, "patches")
    return MediaSpec(processor, (MmprojTower(tower, width),))


def _mmproj_names(file: GgufFile) -> VisionNames:
    return replace(
        vision_names(file),
        attention_post_norm="attn_post_norm",
        mlp_post_norm="ffn_post_norm",
        limit_shape=(1,),
    )


def tensor_name(name: str) -> str:
    """Return the name by which the language model knows a tensor of a folder."""
    return name.replace(".experts.", ".mlp.experts.")


_HF: Final = HfDecoder(
    "gemma4",
    "Gemma4ForCausalLM",
    Gemma4TextConfig,
    text_spec,
    INPUT_NAMES,
    model_type="gemma4_text",
    headless="Gemma4TextModel",
    is_reranker=False,
    tensor_name=tensor_name,
)


def assistant_spec(keys: Mapping[str, Any], where: str) -> AssistantSpec:
    """Read an assistant. See AssistantFamily."""
    return read_assistant(keys, _HF, AssistantConfig, where)


FAMILY = Family(
    hf=_HF,
    gguf=GgufDecoder("gemma4", gguf_text_spec, GGUF_INPUT_NAMES, keys=gguf_text_keys),
    media=MediaFamily("Gemma4ForConditionalGeneration", read_folder, ("gemma4v",), read_mmproj),
    assistant=AssistantFamily(
        "Gemma4AssistantForCausalLM",
        "gemma4_assistant",
        assistant_spec,
        ASSISTANT_NAMES,
        ("gemma4", "gemma4_unified"),
        GGUF_ARCHITECTURE,
        read_gguf_assistant,
        GGUF_ASSISTANT_NAMES,
    ),
)
