"""Small random text-to-image pipelines whose text encoders are chat models. `factor`: see
`tiny_pipelines`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from tokenizers import pre_tokenizers
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3Model,
)

from tests.support.images.tiny_pipelines import vae

WIDTH = 16
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": WIDTH,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
TURBO_SHIFT = 3.0
BASE_SHIFT = 6.0


def save_qwen_image(folder: Path, factor: int = 2) -> Path:
    """Write a Qwen-Image pipeline, whose images have sides of multiples of twice `factor`."""
    torch.manual_seed(0)
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(8, 4, 4),
    )
    halvings = factor.bit_length() - 1
    decoder = AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, *[2] * halvings],
        num_res_blocks=1,
        temperal_downsample=[False] * halvings,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=decoder,
        text_encoder=Qwen2_5_VLForConditionalGeneration(_vision_language()),
        tokenizer=_tokenizer(),
        transformer=transformer,
    ).save_pretrained(folder, safe_serialization=True)
    return folder


def save_z_image_turbo(folder: Path, factor: int = 2) -> Path:
    """Write a Z-Image pipeline that was distilled to few steps, whose images have sides of
    multiples of twice `factor`."""
    return _save_z_image(folder, factor, TURBO_SHIFT)


def save_z_image(folder: Path, factor: int = 2) -> Path:
    """Write a Z-Image pipeline that was not distilled."""
    return _save_z_image(folder, factor, BASE_SHIFT)


def _save_z_image(folder: Path, factor: int, shift: float) -> Path:
    torch.manual_seed(0)
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 128, 128],
    )
    with torch.no_grad():  # these two start uninitialized or as zeros
        transformer.x_pad_token.normal_()
        transformer.cap_pad_token.normal_()
    ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=vae(factor, shift_factor=0.1, scaling_factor=1.5),
        text_encoder=Qwen3Model(Qwen3Config(**TEXT, head_dim=8)),
        tokenizer=_tokenizer(),
        transformer=transformer,
    ).save_pretrained(folder, safe_serialization=True)
    return folder


def _vision_language() -> Qwen2_5_VLConfig:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {
        "depth": 1,
        "hidden_size": WIDTH,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [0],
    }
    return Qwen2_5_VLConfig(text_config=TEXT | {"rope_parameters": rope}, vision_config=vision)


def _tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer of bytes."""
    symbols = (*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL_TOKENS)
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    made = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    made.chat_template = CHAT_TEMPLATE
    return made
