"""Writes the files beside the weights of a transformers folder: config, processor, tokenizer.

mistral.rs reads them although all weights are in GGUF files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bench.media.peers.shapes import Shape, Text


def write_metadata(folder: Path, shape: Shape, model: Path) -> Path:
    """Write the files for the GGUF file `model` to `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = gguf.GGUFReader(model).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = fields["tokenizer.ggml.token_type"].contents()
    written = fields["tokenizer.ggml.merges"].contents()
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in written)]
    control = [
        token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL
    ]
    text = _text_config(shape.text, fields)
    if shape.tower.fused:
        config, image = _qwen3_vl(shape, text, tokens)
    else:
        config, image = _idefics3(shape, text, tokens)
    ends = {"bos_token": "<|im_start|>", "eos_token": shape.end, "unk_token": "<|endoftext|>"}
    files = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": tokens.index(shape.end)},
        "preprocessor_config.json": image,
        "processor_config.json": {
            "processor_class": image["processor_class"],
            "image_seq_len": (shape.tower.side // shape.tower.patch // shape.tower.merge) ** 2,
        },
        "chat_template.json": {"chat_template": shape.template},
        "tokenizer_config.json": {**ends, "chat_template": shape.template},
    }
    for name, keys in files.items():
        (folder / name).write_text(json.dumps(keys))
    _tokenizer(tokens, merges, control).save(str(folder / "tokenizer.json"))
    return folder


def _text_config(text: Text, fields: dict[str, Any]) -> dict[str, Any]:
    layers = int(fields[f"{text.architecture}.block_count"].contents())
    return {
        "hidden_size": text.width,
        "intermediate_size": text.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "vocab_size": text.vocabulary,
        "max_position_embeddings": 8192,
        "rope_theta": text.theta,
        "rms_norm_eps": text.eps,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def _idefics3(
    shape: Shape, text: dict[str, Any], tokens: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    tower = shape.tower
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "image_token_id": tokens.index("<image>"),
        "scale_factor": tower.merge,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "text_config": {"model_type": "llama", **text},
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": tower.width,
            "intermediate_size": tower.inner,
            "num_hidden_layers": tower.layers,
            "num_attention_heads": tower.heads,
            "num_channels": 3,
            "image_size": tower.side,
            "patch_size": tower.patch,
            "layer_norm_eps": 1e-6,
            "hidden_act": "gelu_pytorch_tanh",
            "attention_dropout": 0.0,
            "size": {"longest_edge": 4 * tower.side},
        },
    }
    image = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [tower.mean] * 3,
        "image_std": [0.5] * 3,
        "max_image_size": {"longest_edge": tower.side},
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 4 * tower.side},
    }
    return config, image


def _qwen3_vl(
    shape: Shape, text: dict[str, Any], tokens: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    tower = shape.tower
    scaling = {
        "mrope_interleaved": True,
        "mrope_section": shape.text.keys["rope.dimension_sections"][:3],
        "rope_type": "default",
    }
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "image_token_id": tokens.index("<|image_pad|>"),
        "video_token_id": tokens.index("<|video_pad|>"),
        "vision_start_token_id": tokens.index("<|vision_start|>"),
        "vision_end_token_id": tokens.index("<|vision_end|>"),
        "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3_vl_text", "rope_scaling": scaling, **text},
        "vision_config": {
            "model_type": "qwen3_vl",
            "hidden_size": tower.width,
            "intermediate_size": tower.inner,
            "depth": tower.layers,
            "num_heads": tower.heads,
            "in_channels": 3,
            "patch_size": tower.patch,
            "spatial_merge_size": tower.merge,
            "temporal_patch_size": 2,
            "num_position_embeddings": tower.positions,
            "deepstack_visual_indexes": list(tower.deep),
            "out_hidden_size": shape.text.width,
            "hidden_act": "gelu_pytorch_tanh",
        },
    }
    image = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [tower.mean] * 3,
        "image_std": [0.5] * 3,
        "merge_size": tower.merge,
        "patch_size": tower.patch,
        "temporal_patch_size": 2,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 16_777_216, "shortest_edge": 65_536},
    }
    return config, image


def _tokenizer(tokens: list[str], merges: list[tuple[str, str]], control: list[str]) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in control]
    )
    return tokenizer
