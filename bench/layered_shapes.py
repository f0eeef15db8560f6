"""The sizes of published models whose layers differ, once for all formats in which `bench` writes
random weights: the metadata of llama.cpp's converter, without the prefix of the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


def _delta(width: int, layers: int, ff: int, heads: int, kv_heads: int) -> dict[str, Any]:
    """Return the metadata of a Qwen3.5 with attention in every fourth layer."""
    return {
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 16,
        "ssm.inner_size": 2048,
        "full_attention_interval": 4,
    }


QWEN35_VOCABULARY: Final = 248_320
QWEN35_08B: Final = _delta(1024, 24, 3584, 8, 2)
QWEN35_2B: Final = _delta(2048, 24, 6144, 8, 2)
GLM47_VOCABULARY: Final = 154_880
GLM47_FLASH_4_LAYERS: Final[Mapping[str, Any]] = {
    "embedding_length": 2048,
    "block_count": 4,
    "feed_forward_length": 10_240,
    "attention.head_count": 20,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 768,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 256,
    "attention.value_length_mla": 256,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e6,
    "rope.dimension_count": 64,
    "leading_dense_block_count": 1,
    "expert_count": 64,
    "expert_used_count": 4,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 1536,
    "expert_weights_scale": 1.8,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
}
