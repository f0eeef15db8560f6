"""Small random text-to-image pipelines in diffusers' folders. `factor`: pixels per side of a latent
pixel, a power of 2; published models have 8."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def save_stable_diffusion(folder: Path, factor: int = 2) -> Path:
    """Write a Stable Diffusion pipeline, whose images have sides of multiples of `factor`."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=4,
        attention_head_dim=4,
    )
    StableDiffusionPipeline(
        vae=vae(factor),
        text_encoder=CLIPTextModel(clip_config()),
        tokenizer=clip_tokenizer(folder),
        unet=unet,
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder, safe_serialization=True)
    return folder


def save_stable_diffusion_xl(folder: Path, factor: int = 2) -> Path:
    """Write a Stable Diffusion XL pipeline, whose images have sides of multiples of `factor`."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=4,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=6 * 8 + 16,
    )
    StableDiffusionXLPipeline(
        vae=vae(factor),
        text_encoder=CLIPTextModel(clip_config()),
        tokenizer=clip_tokenizer(folder),
        text_encoder_2=CLIPTextModelWithProjection(clip_config(projection_dim=16)),
        tokenizer_2=clip_tokenizer(folder),
        unet=unet,
        scheduler=EulerDiscreteScheduler(timestep_spacing="leading", steps_offset=1),
        add_watermarker=False,
    ).save_pretrained(folder, safe_serialization=True)
    return folder


def save_flux(folder: Path, factor: int = 2) -> Path:
    """Write a FLUX pipeline without guidance embedding, as FLUX.1-schnell. Its images have sides of
    multiples of twice `factor`."""
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=[4, 4, 8],
        guidance_embeds=False,
    )
    FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae(factor, shift_factor=0.1, scaling_factor=1.5),
        text_encoder=CLIPTextModel(clip_config()),
        tokenizer=clip_tokenizer(folder),
        text_encoder_2=T5EncoderModel(t5_config()),
        tokenizer_2=t5_tokenizer(),
        transformer=transformer,
    ).save_pretrained(folder, safe_serialization=True)
    return folder


def save_stable_diffusion_3(folder: Path, factor: int = 2) -> Path:
    """Write a Stable Diffusion 3 pipeline, whose patches double the multiple of its sides."""
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        caption_projection_dim=16,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        out_channels=4,
    )
    StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=vae(factor, shift_factor=0.1, scaling_factor=1.5),
        text_encoder=CLIPTextModelWithProjection(clip_config(projection_dim=16)),
        tokenizer=clip_tokenizer(folder),
        text_encoder_2=CLIPTextModelWithProjection(clip_config(projection_dim=16)),
        tokenizer_2=clip_tokenizer(folder),
        text_encoder_3=T5EncoderModel(t5_config(d_model=32)),
        tokenizer_3=t5_tokenizer(),
    ).save_pretrained(folder, safe_serialization=True)
    return folder


def vae(factor: int, **options: float) -> AutoencoderKL:
    """Return an image decoder with latents of four channels."""
    channels = [8, *[16] * (factor.bit_length() - 1)]
    return AutoencoderKL(
        block_out_channels=channels,
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * len(channels),
        up_block_types=["UpDecoderBlock2D"] * len(channels),
        latent_channels=4,
        norm_num_groups=4,
        **options,
    )


def clip_config(projection_dim: int = 16) -> CLIPTextConfig:
    return CLIPTextConfig(
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        hidden_size=16,
        intermediate_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        vocab_size=64,
        projection_dim=projection_dim,
        max_position_embeddings=77,
    )


def clip_tokenizer(folder: Path) -> CLIPTokenizer:
    """Return a tokenizer of letters."""
    symbols = [
        "<|startoftext|>",
        "<|endoftext|>",
        *LETTERS,
        *(f"{letter}</w>" for letter in LETTERS),
    ]
    vocabulary = folder / "letters.json"
    merges = folder / "merges.txt"
    vocabulary.write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    merges.write_text("#version: 0.2\n")
    made = CLIPTokenizer(str(vocabulary), str(merges), model_max_length=77)
    vocabulary.unlink()
    merges.unlink()
    return made


def t5_config(d_model: int = 16) -> T5Config:
    return T5Config(vocab_size=64, d_model=d_model, d_kv=8, d_ff=16, num_layers=1, num_heads=2)


def t5_tokenizer() -> T5TokenizerFast:
    """Return a tokenizer of letters."""
    symbols = ["<pad>", "</s>", "<unk>", "▁", *LETTERS]
    unigram = models.Unigram([(symbol, -float(n)) for n, symbol in enumerate(symbols)], unk_id=2)
    backend = Tokenizer(unigram)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return T5TokenizerFast(tokenizer_object=backend, extra_ids=0)
