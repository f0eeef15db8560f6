"""Small random Qwen2-Audio and Voxtral on disk, which hear, with a byte-level tokenizer and chat
templates that write recordings as the official ones do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer

QWEN2_AUDIO_TEMPLATE = (
    "{% set count = namespace(value=0) %}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if 'audio' in content or 'audio_url' in content or content['type'] == 'audio' %}"
    "{% set count.value = count.value + 1 %}"
    "{{ 'Audio ' ~ count.value ~ ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
VOXTRAL_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST]' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'audio' %}{{ '[BEGIN_AUDIO][AUDIO]' }}"
    "{% else %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}{{ '[/INST]' }}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class HearingFamily:
    """A family of which `write_small_hearing` writes a model.

    - `name`: precedes `Config` and `ForConditionalGeneration` in transformers.
    - `text`: the `model_type` of its language model.
    - `audio`: the sizes of its tower.
    - `tokens`: its control tokens. The first one is the token of a row.
    """

    name: str
    text: str
    audio: dict[str, Any]
    tokens: tuple[str, ...]
    template: str


FAMILIES = {
    "qwen2-audio": HearingFamily(
        "Qwen2Audio",
        "qwen2",
        {
            "model_type": "qwen2_audio_encoder",
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
        },
        ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        QWEN2_AUDIO_TEMPLATE,
    ),
    "voxtral": HearingFamily(
        "Voxtral",
        "llama",
        {
            "model_type": "voxtral_encoder",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 128,
        },
        ("[AUDIO]", "[BEGIN_AUDIO]", "[INST]", "[/INST]"),
        VOXTRAL_TEMPLATE,
    ),
}


def write_small_hearing(folder: Path, family: HearingFamily) -> Path:
    """Write a model with random float32 weights."""
    import torch
    import transformers

    data = tiny_data()
    text: dict[str, Any] = {
        "model_type": family.text,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(data.tokens) + len(family.tokens),
        "max_position_embeddings": 2048,
        "bos_token_id": 256,
        "eos_token_id": 258,
        "pad_token_id": 256,
    }
    config = getattr(transformers, f"{family.name}Config")(
        text_config=text, audio_config=family.audio, audio_token_id=len(data.tokens)
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family.name}ForConditionalGeneration")(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=128).save_pretrained(folder)
    control = [int(TokenType.CONTROL)] * len(family.tokens)
    tokenizer = tiny_tokenizer(
        tokens=[*data.tokens, *family.tokens], token_types=[*data.token_types, *control]
    )
    (folder / "tokenizer.json").write_text(tokenizer.serialize())
    extra = {"eos_token": "<|im_end|>", "chat_template": family.template}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
    return folder
