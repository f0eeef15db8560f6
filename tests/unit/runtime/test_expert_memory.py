"""Both memory formulas count the activations of a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

from penstock.config import EngineSettings
from penstock.kernels.routing import Routing
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.runtime.gpu.memory_terms import activation_bytes
from penstock.runtime.memory import plan_memory

EXPERTS = ExpertsSpec(128, Routing(8, renormalize=True), intermediate_size=768)
A3B = DecoderSpec(
    architecture="qwen3_moe",
    hidden_size=2048,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    intermediate_size=6144,
    vocab_size=151936,
    norm_eps=1e-6,
    rope=RopeSpec(1e6, 128),
    layers=(LayerSpec(experts=EXPERTS),) * 48,
    max_model_len=40960,
)


def test_the_widest_layer_determines_the_activations() -> None:
    inside = 2 * 2048 + 3 * 768
    assert 8 * inside < A3B.inner_columns < 8.1 * inside + 128
    dense = replace(A3B, layers=(LayerSpec(),) * 48)
    assert dense.inner_columns == 3 * 6144
    mixed = replace(A3B, layers=(LayerSpec(), *A3B.layers[1:]), intermediate_size=40_000)
    assert mixed.inner_columns == 3 * 40_000


def test_a_step_needs_memory_for_every_chosen_expert() -> None:
    sizes = [
        plan_memory(
            A3B, 0, EngineSettings(max_num_batched_tokens=budget, kv_cache_memory_mb=4096), None
        ).buffer_bytes
        for budget in (512, 1024)
    ]
    assert sizes[1] - sizes[0] == 512 * 4 * (3 * 2048 + A3B.inner_columns)
    more = activation_bytes(A3B, 512, 1, 2) - activation_bytes(A3B, 256, 1, 2)
    assert more == 256 * 2 * (3 * 2048 + A3B.inner_columns)
