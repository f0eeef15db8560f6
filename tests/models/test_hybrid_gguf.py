"""A hybrid model read from GGUF gives the logits of the same model in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from decoder_stepper import Stepper, load_decoder
from gguf_hybrid_export import convert
from hybrid_models import (
    CONV_EXPERTS,
    DELTA,
    EXPERTS,
    FALCON,
    GRANITE,
    MAMBA,
    MULTIPLIERS,
    NEMOTRON,
    PLAIN_DELTA,
    PROMPT,
    SHORT_CONV,
    expected_logits,
    save,
)

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
EVERY_FOURTH = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}

UNLIMITED = {"time_step_min": 1e-9}
"""GGUF files have no least time step."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5 with tiled heads": ("Qwen3_5", DELTA | EVERY_FOURTH),
    "qwen3_5 with three heads per group, tied": (
        "Qwen3_5",
        DELTA | EVERY_FOURTH | {"linear_num_value_heads": 6, "tie_word_embeddings": True},
    ),
    "qwen3_5 with as many heads": ("Qwen3_5", DELTA | EVERY_FOURTH | {"linear_num_key_heads": 4}),
    "qwen3_5 moe": ("Qwen3_5Moe", DELTA | EVERY_FOURTH | EXPERTS),
    "qwen3_next": ("Qwen3Next", PLAIN_DELTA | EVERY_FOURTH | EXPERTS),
    "lfm2": ("Lfm2", SHORT_CONV),
    "lfm2 moe tied": (
        "Lfm2Moe",
        SHORT_CONV | CONV_EXPERTS | {"tie_word_embeddings": True},
    ),
    "granite 4": ("GraniteMoeHybrid", MAMBA | GRANITE),
    "granite 4 without experts, with one group": (
        "GraniteMoeHybrid",
        MAMBA | GRANITE | {"num_local_experts": 0, "mamba_n_groups": 1, "intermediate_size": 48},
    ),
    "nemotron_h with experts": (
        "NemotronH",
        NEMOTRON | {"hybrid_override_pattern": "M*EM*E", "routed_scaling_factor": 2.5} | UNLIMITED,
    ),
    "nemotron_h without experts": (
        "NemotronH",
        NEMOTRON | {"hybrid_override_pattern": "M*-M--"} | UNLIMITED,
    ),
    "falcon_h1": ("FalconH1", MAMBA | FALCON | MULTIPLIERS),
    "falcon_h1 with a norm": (
        "FalconH1",
        MAMBA | FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "lfm2 tied": ("Lfm2", SHORT_CONV | {"tie_word_embeddings": True}),
}


def logits_of(path: Path) -> torch.Tensor:
    return Stepper(*load_decoder(path)).step({0: PROMPT}, all_rows=True)


@pytest.mark.parametrize("case", list(CASES))
def test_float_gguf_gives_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    model = save(*CASES[case], tmp_path)
    convert(tmp_path, tmp_path / "m.gguf")
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )


def test_f32_mode_computes_with_the_exact_quantized_values(tmp_path: Path) -> None:
    """This includes the reordered columns of the last projection."""
    wide = {"linear_value_head_dim": 32, "linear_num_value_heads": 6}
    model = save("Qwen3_5", DELTA | EVERY_FOURTH | wide, tmp_path)
    kind = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                packed = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
    model.save_pretrained(tmp_path)
    convert(tmp_path, tmp_path / "m.gguf", "Q8_0")
    logits = Stepper(*load_decoder(tmp_path / "m.gguf", "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    model = save(*CASES["qwen3_5 with tiled heads"], tmp_path)
    convert(tmp_path, tmp_path / "m.gguf", mtp_layers=1)
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )


def test_nemotron_h_needs_only_the_key_of_eps_that_llama_cpp_reads(tmp_path: Path) -> None:
    model = save(*CASES["nemotron_h without experts"], tmp_path)
    convert(tmp_path, tmp_path / "m.gguf", without=("attention.layer_norm_rms_epsilon",))
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )
