"""A small random LLaVA on disk: a CLIP tower, a projector and a Llama, with a byte-level tokenizer
and the official chat template's content parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer

IMAGE = "<image>"
SIDE, PATCH = 28, 7
IMAGE_TOKENS = (SIDE // PATCH) ** 2
CONTEXT = 1024
TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] + ' ' }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<image>\\n' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] + ' ' }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def write_small_llava(folder: Path) -> Path:
    """Write a LlavaForConditionalGeneration with random float32 weights."""
    import torch
    from transformers import CLIPImageProcessor, LlavaConfig, LlavaForConditionalGeneration

    data = tiny_data()
    image_id = len(data.tokens)
    vocab = image_id + 1
    text: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocab,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 256,
        "eos_token_id": 258,
    }
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": SIDE,
        "patch_size": PATCH,
        "projection_dim": 32,
    }
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=image_id)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    CLIPImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    ).save_pretrained(folder)
    tokenizer = tiny_tokenizer(
        tokens=[*data.tokens, IMAGE], token_types=[*data.token_types, int(TokenType.CONTROL)]
    )
    (folder / "tokenizer.json").write_text(tokenizer.serialize())
    extra = {
        "eos_token": "<|im_end|>",
        "bos_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
    return folder
