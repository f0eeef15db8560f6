"""A key of a GGUF file that changes what its model computes is applied, or refused by its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_export import export_gguf
from test_decoder import BEYOND, GEMMA3, PROMPT, TOLERANCE, expected_logits
from test_gguf_models import logits_of, small_model

from penstock.base.errors import ModelError
from penstock.models.decoder.rope_spec import LinearScaling, YarnScaling
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_embedder, load_model, load_text_parts

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_KEYS = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}


def exported(path: Path, keys: Mapping[str, Any], name: str = "Llama", **options: Any) -> Any:
    """Write a small model to `path` with `keys` in its metadata, and return it."""
    model = small_model(name, **options)
    export_gguf(model, path, extra_keys=keys)
    return model


def spec_with(path: Path, keys: Mapping[str, Any], name: str = "Llama") -> DecoderSpec:
    options = GEMMA3 if name == "Gemma3" else {"num_hidden_layers": 1}
    exported(path, keys, name, **options)
    return load_model(ModelFiles("m", "gguf", path), "auto").spec


@pytest.mark.parametrize(
    ("rope", "keys"),
    [
        (
            {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
            {"llama.rope.scaling.factor": 4.0},
        ),
        (
            {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
            {"llama.rope.scale_linear": 4.0},
        ),
        (YARN, YARN_KEYS),
        (
            YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
            YARN_KEYS
            | {"llama.rope.scaling.yarn_beta_fast": 16.0, "llama.rope.scaling.yarn_beta_slow": 2.0},
        ),
        (
            YARN | {"attention_factor": 1.5 * (1 + 0.1 * math.log(4))},
            YARN_KEYS | {"llama.rope.scaling.attn_factor": 1.5},
        ),
    ],
    ids=["factor without type", "older name", "yarn", "yarn ramp", "yarn attention factor"],
)
def test_a_scaled_rope_gives_the_logits_of_transformers(
    tmp_path: Path, rope: dict[str, Any], keys: dict[str, Any]
) -> None:
    model = exported(tmp_path / "m.gguf", keys, rope_parameters=rope)
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )


def test_scaling_type_none_disables_the_factor(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}
    assert spec_with(tmp_path / "m.gguf", keys).rope.scaling is None


def test_a_factor_of_zero_means_no_scaling(tmp_path: Path) -> None:
    assert spec_with(tmp_path / "m.gguf", {"llama.rope.scaling.factor": 0.0}).rope.scaling is None


def test_the_original_context_of_yarn_defaults_to_the_context(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}
    spec = spec_with(tmp_path / "m.gguf", keys)
    assert isinstance(spec.rope.scaling, YarnScaling)
    assert spec.rope.scaling.original_context == spec.max_model_len


@pytest.mark.parametrize("pattern", [3, [True, True, False] * 2 + [True], [1, 1, 0, 1, 1, 0, 1]])
def test_metadata_select_the_sliding_layers_of_gemma(tmp_path: Path, pattern: Any) -> None:
    types = ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(7)]
    keys = {"gemma3.attention.sliding_window_pattern": pattern}
    model = exported(tmp_path / "m.gguf", keys, "Gemma3", **GEMMA3 | {"layer_types": types})
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )


def test_scales_of_attention_and_embeddings_are_the_files(tmp_path: Path) -> None:
    keys = {"llama.attention.scale": 0.25, "llama.embedding_scale": 12.0}
    spec = spec_with(tmp_path / "m.gguf", keys)
    assert (spec.attention_scale, spec.embedding_scale) == (0.25, 12.0)


def test_longrope_without_its_factors_is_refused(tmp_path: Path) -> None:
    keys = {"phi3.rope.scaling.type": "longrope"}
    with pytest.raises(ModelError, match=r"type longrope: tensor rope_factors_short"):
        spec_with(tmp_path / "m.gguf", keys, "Phi3")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("factor", 4.0, r"scaling\.factor 4\.0 is not supported with longrope"),
        ("yarn_ext_factor", 1.0, r"scaling\.yarn_ext_factor 1\.0 is not supported"),
    ],
)
def test_other_scaling_beside_longrope_is_refused(
    tmp_path: Path, key: str, value: float, message: str
) -> None:
    keys = {f"phi3.rope.scaling.{key}": value}
    exported(tmp_path / "m.gguf", keys, "Phi3", **BEYOND)
    with pytest.raises(ModelError, match=message):
        load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")


def test_norms_of_heads_beside_an_interleaved_rope_are_refused(tmp_path: Path) -> None:
    """Their weights would have to be reordered too; no family has them."""
    norms = {f"blk.0.attn_{name}_norm.weight": np.ones(16, np.float32) for name in "qk"}
    model = small_model("Glm4", num_hidden_layers=1, head_dim=16)
    export_gguf(model, tmp_path / "m.gguf", extra_tensors=norms)
    message = "norms of heads are not supported with an interleaved rope"
    with pytest.raises(ModelError, match=message):
        load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")


def test_granite_with_untrained_positions_has_no_rope(tmp_path: Path) -> None:
    spec = spec_with(tmp_path / "m.gguf", {"granite.rope.scaling.finetuned": False}, "Granite")
    assert not any(layer.rotary for layer in spec.layers)
    keys = {"granite.rope.scaling.finetuned": True}
    assert all(layer.rotary for layer in spec_with(tmp_path / "t.gguf", keys, "Granite").layers)


def test_scales_of_zero_mean_not_set(tmp_path: Path) -> None:
    names = ("attention.scale", "embedding_scale", "residual_scale", "logit_scale")
    spec = spec_with(tmp_path / "m.gguf", {f"granite.{name}": 0.0 for name in names}, "Granite")
    assert (spec.attention_scale, spec.embedding_scale, spec.logit_scale) == (None, 1.0, 1.0)
    assert spec.norm_eps == pytest.approx(1e-6)


def test_the_logit_divisor_does_not_apply_to_embeddings(tmp_path: Path) -> None:
    keys = {"granite.logit_scale": 8.0, "granite.pooling_type": 1}
    assert spec_with(tmp_path / "m.gguf", keys, "Granite").logit_scale == 0.125
    spec = load_embedder(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto").spec
    assert isinstance(spec, DecoderSpec) and spec.logit_scale == 1.0


@pytest.mark.parametrize("name", ["residual_scale", "logit_scale", "embedding_scale"])
def test_a_negative_scale_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: .* -2\.0 is not positive"):
        spec_with(tmp_path / "m.gguf", {f"granite.{name}": -2.0}, "Granite")


def test_a_separate_rope_base_for_windows_keeps_the_scaling(tmp_path: Path) -> None:
    keys = {"llama.rope.freq_base_swa": 5000.0, "llama.rope.scaling.factor": 2.0}
    local = spec_with(tmp_path / "m.gguf", keys).local_rope
    assert local is not None
    assert (local.theta, local.scaling) == (5000.0, LinearScaling(2.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 8.0),
        ("residual_scale", 0.25),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.temperature_length", 8192),
        ("attention.shared_kv_layers", 2),
        ("attention.key_length_swa", 8),
        ("attention.sliding_window_pattern", [True, False, True]),
        ("rope.dimension_count_swa", 8),
        ("rope.scaling.alpha", 1000.0),
        ("rope.scaling.attn_factor", 1.5),
        ("rope.scaling.yarn_attn_factor", 1.5),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.factor", -2.0),
        ("use_parallel_residual", True),
        ("swiglu_clamp_exp", [0.0, 7.0]),
        ("nextn_predict_layers", 1),
    ],
)
def test_unsupported_metadata_keys_are_refused_by_name(
    tmp_path: Path, key: str, value: Any
) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: llama\.{key} "):
        spec_with(tmp_path / "m.gguf", {f"llama.{key}": value})


def test_a_refusal_names_key_and_value(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gemma3\.final_logit_softcapping 30\.0 is not supported"):
        spec_with(tmp_path / "m.gguf", {"gemma3.final_logit_softcapping": 30.0}, "Gemma3")


def test_neutral_values_are_accepted(tmp_path: Path) -> None:
    neutral = {
        "attn_logit_softcapping": 0.0,
        "final_logit_softcapping": 0.0,
        "logit_scale": 1.0,
        "residual_scale": 0.0,
        "attention.causal": True,
        "attention.scale": 0.0,
        "attention.key_length_swa": 16,
        "rope.scaling.attn_factor": 1.0,
        "rope.scaling.finetuned": True,
        "rope.scaling.yarn_ext_factor": -1.0,
        "use_parallel_residual": False,
        "swiglu_clamp_exp": [0.0, 0.0],
        "a_key_of_no_influence": 5,
    }
    plain = spec_with(tmp_path / "a.gguf", {})
    keys = {f"llama.{key}": value for key, value in neutral.items()}
    assert spec_with(tmp_path / "b.gguf", keys) == plain


def test_a_bidirectional_decoder_embeds_but_generates_no_text(tmp_path: Path) -> None:
    keys = {"llama.attention.causal": False, "llama.pooling_type": 1}
    with pytest.raises(ModelError, match=r"attention\.causal.*embeddings but not generate text"):
        spec_with(tmp_path / "m.gguf", keys)
    spec = load_embedder(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto").spec
    assert isinstance(spec, DecoderSpec) and spec.bidirectional


def test_windows_of_a_bidirectional_decoder_are_refused(tmp_path: Path) -> None:
    keys = {"llama.attention.causal": False, "llama.attention.sliding_window": 8}
    message = "causal false is not supported together with a sliding window"
    with pytest.raises(ModelError, match=message):
        spec_with(tmp_path / "m.gguf", keys)


@pytest.mark.parametrize("padding", [1000, 2**32 - 1])
def test_a_padding_token_outside_the_vocabulary_is_ignored(tmp_path: Path, padding: int) -> None:
    """Fine-tuned models name a padding token that they never added. Requests are never padded."""
    path = tmp_path / "m.gguf"
    model = small_model("Llama", num_hidden_layers=1)
    tokens = ["a", "<|s|>", "<|e|>", "b", "ab"]
    keys = {"tokenizer.ggml.padding_token_id": padding}
    export_gguf(model, path, tokens=tokens, extra_keys=keys)
    assert load_text_parts(ModelFiles("m", "gguf", path)).stop_ids == (2,)
