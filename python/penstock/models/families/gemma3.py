"""Gemma 3: scaled embeddings, norms before and after each block and on query and key heads, GELU,
and a sliding window with its own rotary embedding in five of six layers. Images: SigLIP, whose
patches are averaged by squares, normalized and projected; an image's tokens attend to each other in
both directions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, GgufDecoder, HfDecoder, MediaFamily
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_decoder import decoder_spec
from penstock.models.configuration.hf_layers import all_but_last_of, typed_layers
from penstock.models.configuration.hf_rope import local_rope_spec
from penstock.models.configuration.image_mmproj import read_images
from penstock.models.configuration.media_config import (
    PROJECTOR_ROOTS,
    TOWER_ROOTS,
    read_model_config,
    text_width,
    token_name,
)
from penstock.models.configuration.vision_config import vision_of
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import HF_NAMES
from penstock.models.media.image_config import (
    BILINEAR,
    ImageConfig,
    read_image_config,
    square_or_sides,
)
from penstock.models.media.image_processor import ImageProcessor, PlainRows
from penstock.models.media.pan_and_scan import CroppedRows, PanAndScan
from penstock.models.media.tilings import SingleTile
from penstock.models.towers.image_tower import ImageTowerSpec
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_WINDOW_PERIOD = 6
GGUF_LOCAL_THETA = 10_000.0
MMPROJ_LAYER = "mm.input_projection.weight"
_MOST_CROPS = 16
LAYERS_OF_27B = 62
"""The number of layers of the 27B model, the only one whose attention scale does not follow from
its head dimension."""


class Config(HfConfig):
    """The keys of config.json, with the defaults of transformers' Gemma3TextConfig."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    hidden_activation: str | None = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool | None = True
    rope_theta: float | None = 1e6
    rope_local_base_freq: float | None = 1e4
    query_pre_attn_scalar: float | None = 256
    sliding_window: int | None = 4096
    sliding_window_pattern: int | None = 6
    use_bidirectional_attention: bool | None = None


def spec(config: Config, where: str) -> DecoderSpec:
    """Return the decoder spec that `config` describes. The checkpoint stores the norm weights minus
    1."""
    bidirectional = bool(config.use_bidirectional_attention)
    window = config.sliding_window
    if window and bidirectional:
        window = window // 2 + 1  # the config counts both sides, LayerSpec one side plus the token
    is_sliding = all_but_last_of(config.sliding_window_pattern, where)
    layers = typed_layers(config, where, window, is_sliding)
    plain = decoder_spec(_llama_keys(config), where, layers)
    scalar = config.query_pre_attn_scalar
    return replace(
        plain,
        qk_norm=True,
        local_rope=local_rope_spec(config, where, config.rope_local_base_freq),
        attention_scale=scalar**-0.5 if scalar and scalar > 0 else None,
        embedding_scale=max(config.hidden_size, 0) ** 0.5,
        norm_offset=1.0,
        norms="sandwich",
        bidirectional=bidirectional or plain.bidirectional,
    )


def _llama_keys(config: Config) -> Config:
    """Return the config with the values of Gemma's keys under Llama's keys. If
    `use_bidirectional_attention` is true, it overrides `is_causal`."""
    return msgspec.structs.replace(
        config,
        hidden_act=config.hidden_activation or config.hidden_act,
        is_causal=True if config.use_bidirectional_attention else config.is_causal,
    )


def gguf_spec(file: GgufFile) -> DecoderSpec:
    """Return the decoder spec of a GGUF file, filling in what the metadata omits. The converter has
    already added 1 to the norm weights."""
    plain = gguf_decoder_spec(file, window_period=GGUF_WINDOW_PERIOD)
    scale = plain.head_dim**-0.5
    if len(plain.layers) == LAYERS_OF_27B:
        scale = (plain.hidden_size / plain.num_heads) ** -0.5
    local_theta = file.real("gemma3.rope.freq_base_swa", GGUF_LOCAL_THETA)
    return replace(
        plain,
        # Not scaled, as in Google's config.json; llama.cpp multiplies by attn_factor here too.
        local_rope=RopeSpec(local_theta, plain.rope.rotary_dim),
        attention_scale=plain.attention_scale or scale,
        embedding_scale=file.real("gemma3.embedding_scale", 0.0) or plain.hidden_size**0.5,
        norms="sandwich",
        activation="gelu_tanh",
    )


class MediaConfig(msgspec.Struct):
    """The keys of a multimodal config.json, with the defaults of transformers' Gemma3Config."""

    vision_config: dict[str, Any]
    mm_tokens_per_image: int = 256
    image_token_index: int | None = None
    image_token_id: int | None = None

    @property
    def image_token(self) -> int:
        """The id of the token of an image row."""
        given = self.image_token_index if self.image_token_id is None else self.image_token_id
        return 262_144 if given is None else given


class Gemma3ImageConfig(ImageConfig):
    """The keys of the image processor, with the defaults of transformers' Gemma3ImageProcessor."""

    size: dict[str, int] | int | None = 224
    resample: int = BILINEAR
    do_pan_and_scan: bool | None = None
    pan_and_scan_min_crop_size: int | None = None
    pan_and_scan_max_num_crops: int | None = None
    pan_and_scan_min_ratio_to_activate: float | None = None

    def tiling(self, single: SingleTile, where: str) -> SingleTile | PanAndScan:
        """Return the tiling of images. Keys that are null have the defaults of transformers'
        Gemma3Processor. Raises ModelError naming a number that is not supported."""
        if not self.do_pan_and_scan:
            return single
        least, most = self.pan_and_scan_min_crop_size, self.pan_and_scan_max_num_crops
        ratio = self.pan_and_scan_min_ratio_to_activate
        tiling = PanAndScan(
            single,
            least=256 if least is None else least,
            most=4 if most is None else most,
            ratio=1.2 if ratio is None else ratio,
        )
        if not 1 <= tiling.most <= min(tiling.least, _MOST_CROPS):
            raise ModelError(
                f"{where}: pan_and_scan_max_num_crops must be at least 1 and at most"
                f" pan_and_scan_min_crop_size and {_MOST_CROPS}, not {tiling.most}"
            )
        return tiling


def read_folder(folder: Path) -> MediaSpec:
    """Read the media side of a folder. See MediaFamily."""
    config, keys, where = read_model_config(folder, MediaConfig)
    images = read_image_config(folder, Gemma3ImageConfig)
    vision = vision_of(config.vision_config, where, TOWER_ROOTS)
    lines, side = round(config.mm_tokens_per_image**0.5), vision.side // vision.patch
    if lines < 1 or lines**2 != config.mm_tokens_per_image or side % lines or vision.rope:
        raise ModelError(
            f"{where}: mm_tokens_per_image {config.mm_tokens_per_image} must be a square whose root"
            f" divides the {side} patches on a side of an image"
        )
    projector = ProjectorSpec(
        PROJECTOR_ROOTS,
        vision.spec.hidden_size,
        (
            ProjectorLayer(
                "mm_input_projection_weight", text_width(keys, where), False, is_transposed=True
            ),
        ),
        merge=side // lines,
        reduction="mean",
        norm="rms",
        norm_name="mm_soft_emb_norm",
        norm_eps=vision.spec.norm_eps,
        norm_offset=1.0,
    )
    size = square_or_sides(images.size, "size", str(folder))
    if size != (vision.side, vision.side):
        raise ModelError(f"{folder}: size must be {vision.side}, the side of the tower's images")
    tiling = images.tiling(SingleTile(size, images.resample), str(folder))
    tower = ImageTowerSpec(
        vision.spec,
        vision.names,
        projector,
        images.normalization(where),
        vision.patches,
        most_tiles=1 + tiling.most if isinstance(tiling, PanAndScan) else 1,
        scheme=vision.scheme,
    )
    tower.check(where)
    start = token_name(folder, "boi_token", "<start_of_image>")
    end = token_name(folder, "eoi_token", "<end_of_image>")
    marking = CroppedRows(PlainRows(merge=side // lines, before=f"\n\n{start}", after=f"{end}\n\n"))
    processor = ImageProcessor(start, config.image_token, vision.patch, tiling, marking, whole=True)
    return MediaSpec(processor, (tower,))


def read_mmproj(file: GgufFile) -> MediaSpec:
    """Read the media side of an `mmproj` file. The converter has already added 1 to the norm
    weights. See MediaFamily."""
    read = read_images(file)
    merge, side = read.merge(4), read.sizes.image
    width = file.tensors.get(MMPROJ_LAYER)
    if width is None:
        raise ModelError(f"{file.path}: tensor {MMPROJ_LAYER} is missing")
    layer = ProjectorLayer(MMPROJ_LAYER, width.shape[-1], False, is_transposed=True)
    projector = ProjectorSpec(
        ("",),
        read.spec.hidden_size,
        (layer,),
        merge=merge,
        reduction="mean",
        norm="rms",
        norm_name="mm.soft_emb_norm",
        norm_eps=read.spec.norm_eps,
    )
    start, end = "<start_of_image>", "<end_of_image>"
    marking = PlainRows(merge=merge, before=f"\n\n{start}", after=f"{end}\n\n")
    tiling = SingleTile((side, side), BILINEAR)
    return read.media(projector, start, tiling, marking, read.grid**2, whole=True)


NAMES = replace(
    HF_NAMES,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)
FAMILY = Family(
    hf=HfDecoder(
        "gemma3",
        "Gemma3ForCausalLM",
        Config,
        spec,
        NAMES,
        model_type="gemma3_text",
        headless="Gemma3TextModel",
        is_reranker=False,
    ),
    gguf=GgufDecoder("gemma3", gguf_spec),
    media=MediaFamily("Gemma3ForConditionalGeneration", read_folder, ("gemma3",), read_mmproj),
)
