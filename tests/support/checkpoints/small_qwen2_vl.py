"""A small random Qwen2-VL on disk, which reads images and videos, with a byte-level tokenizer and
the official chat template's content parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer

TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = """
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}{% else %}
{%- for content in message.content %}
{%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif content.type == 'video' or 'video' in content %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in content %}{{- content.text }}{% endif %}
{%- endfor %}{% endif %}{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""


def write_small_qwen2_vl(folder: Path) -> Path:
    """Write a Qwen2VLForConditionalGeneration with random float32 weights."""
    import torch
    import transformers

    data = tiny_data()
    ids = {token: len(data.tokens) + index for index, token in enumerate(TOKENS)}
    text: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(data.tokens) + len(TOKENS),
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [2, 3, 3],
        },
        "bos_token_id": 256,
        "eos_token_id": 258,
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "num_heads": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config = transformers.Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
    )
    torch.manual_seed(0)
    model = transformers.Qwen2VLForConditionalGeneration(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 784, "longest_edge": 30_000}}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(sizes))
    control = [int(TokenType.CONTROL)] * len(TOKENS)
    tokenizer = tiny_tokenizer(
        tokens=[*data.tokens, *TOKENS], token_types=[*data.token_types, *control]
    )
    (folder / "tokenizer.json").write_text(tokenizer.serialize())
    extra = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE.strip()}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
    return folder
