"""A small random Qwen3-VL on disk, which reads images, with a byte-level tokenizer and the official
chat template's content parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.small_qwen2_vl import TEMPLATE, TOKENS
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer

PIXELS = {"shortest_edge": 1024, "longest_edge": 30_000}


def write_small_qwen3_vl(folder: Path) -> Any:
    """Write a Qwen3VLForConditionalGeneration with random float32 weights and return it."""
    import torch
    import transformers

    data = tiny_data()
    ids = {token: len(data.tokens) + index for index, token in enumerate(TOKENS)}
    text: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": len(data.tokens) + len(TOKENS),
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        "bos_token_id": 256,
        "eos_token_id": 258,
    }
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "patch_size": 16,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
    }
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.Qwen3VLForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    keys = {"size": PIXELS, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    control = [int(TokenType.CONTROL)] * len(TOKENS)
    tokenizer = tiny_tokenizer(
        tokens=[*data.tokens, *TOKENS], token_types=[*data.token_types, *control]
    )
    (folder / "tokenizer.json").write_text(tokenizer.serialize())
    extra = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE.strip()}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
    return model


def add_message_embedding(folder: Path, instruction: str) -> None:
    """Turn the folder into that of an embedding model whose inputs are messages, as published for
    Qwen3-VL-Embedding. `instruction`: the default message of the system."""
    kinds = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    call = {"method": "forward", "method_output_name": "last_hidden_state"}
    transformer = {
        "transformer_task": "feature-extraction",
        "modality_config": dict.fromkeys(("text", "image", "video", "message"), call),
        "module_output_name": "token_embeddings",
        "message_format": "structured",
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }
    prompts = {"prompts": {"default": instruction}, "default_prompt_name": "default"}
    pooling = {"embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": True}
    (folder / "1_Pooling").mkdir()
    for name, keys in {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": transformer,
        "config_sentence_transformers.json": prompts,
    }.items():
        (folder / name).write_text(json.dumps(keys))
