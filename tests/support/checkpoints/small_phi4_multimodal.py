"""A small random Phi-4-multimodal on disk, with a byte-level tokenizer, the two adapters, and a
chat template that writes images and recordings as the official one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer

TOKENS = ("<|image|>", "<|audio|>", "<|user|>", "<|assistant|>", "<|end|>")
ADAPTERS = {"vision-lora": 8, "speech-lora": 12}
"""The folder of each adapter -> its rank."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}{{ '<|image|>' }}"
    "{% elif content['type'] == 'audio' %}{{ '<|audio|>' }}"
    "{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_WIDTH, _HEADS, _KV_HEADS, _INNER, _LAYERS = 64, 4, 2, 96, 2


def write_small_phi4_multimodal(folder: Path) -> Path:
    """Write a Phi4MultimodalForCausalLM with random float32 weights."""
    import torch
    import transformers
    from transformers.models.phi4_multimodal import feature_extraction_phi4_multimodal

    model = transformers.Phi4MultimodalForCausalLM(small_config()).float()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("inv_freq"):
                continue
            is_scale = name.endswith(("norm.weight", "layernorm.weight", "global_invstd"))
            tensor.normal_(1.0 if is_scale else 0.0, 0.15)
        model.model.embed_tokens_extend.audio_embed.encoder.encoder_embedding.global_mean += 10
    model.save_pretrained(folder)
    for seed, (name, rank) in enumerate(ADAPTERS.items()):
        _write_adapter(folder / name, rank, seed)
    (folder / "preprocessor_config.json").write_text("{}")
    feature_extraction_phi4_multimodal.Phi4MultimodalFeatureExtractor().save_pretrained(
        folder / "features"
    )
    data = tiny_data()
    control = [int(TokenType.CONTROL)] * len(TOKENS)
    tokenizer = tiny_tokenizer(
        tokens=[*data.tokens, *TOKENS], token_types=[*data.token_types, *control]
    )
    (folder / "tokenizer.json").write_text(tokenizer.serialize())
    extra = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
    return folder


def small_config() -> Any:
    """Return the config of the model."""
    import transformers

    first = len(tiny_data().tokens)
    vision = transformers.models.phi4_multimodal.Phi4MultimodalVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_token_id=first,
    )
    audio = transformers.models.phi4_multimodal.Phi4MultimodalAudioConfig(
        hidden_size=32,
        intermediate_size=48,
        num_blocks=2,
        num_attention_heads=2,
        ext_pw_out_channel=32,
        depthwise_separable_out_channel=32,
        nemo_conv_channels=16,
        bias_max_distance=40,
        audio_token_id=first + 1,
    )
    config = transformers.Phi4MultimodalConfig(
        vision_config=vision,
        audio_config=audio,
        hidden_size=_WIDTH,
        intermediate_size=_INNER,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        vocab_size=first + len(TOKENS),
        max_position_embeddings=4096,
        bos_token_id=256,
        eos_token_id=first + 4,
        pad_token_id=256,
    )
    config._attn_implementation = "eager"
    return config


def _write_adapter(folder: Path, rank: int, seed: int) -> None:
    """Write an adapter over all projections as PEFT does."""
    from safetensors.numpy import save_file

    source = np.random.default_rng(seed)
    head = _WIDTH // _HEADS
    sizes = {
        "self_attn.qkv_proj": (_WIDTH, _WIDTH + 2 * _KV_HEADS * head),
        "self_attn.o_proj": (_WIDTH, _WIDTH),
        "mlp.gate_up_proj": (_WIDTH, 2 * _INNER),
        "mlp.down_proj": (_INNER, _WIDTH),
    }
    tensors = {}
    for layer in range(_LAYERS):
        for name, (columns, rows) in sizes.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                drawn = source.normal(scale=0.15, size=shape)
                tensors[f"{stem}.lora_{side}.weight"] = drawn.astype(np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": r"layers.*((self_attn\.(qkv_proj|o_proj))|(mlp\.(gate_up|down)_proj))",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
