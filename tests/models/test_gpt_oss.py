"""gpt-oss gives the logits of `transformers`, from folders of floats and MXFP4 and from GGUF. All
hold the same numbers, and float32 mode uses them unrounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from test_decoder import TOLERANCE, expected_logits

from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine
from penstock.models.decoder.rope_spec import YarnScaling
from penstock.models.families.registry import spec_of_folder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model, load_text_parts
from tests.support.checkpoints.small_gpt_oss import (
    CONFIG,
    EXPERTS,
    FF,
    LAYERS,
    WIDTH,
    WINDOW,
    gpt_oss_tensors,
    write_small_gpt_oss,
    write_small_gpt_oss_gguf,
)

PROMPT = np.random.default_rng(5).integers(0, 200, 60).tolist()
FORMS = ["floats", "mxfp4", "gguf"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_small_gpt_oss(tmp_path_factory.mktemp("model"), "floats")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    return loaded.eval()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "floats": write_small_gpt_oss(root / "floats", "floats"),
        "mxfp4": write_small_gpt_oss(root / "mxfp4"),
        "gguf": write_small_gpt_oss_gguf(root / "m.gguf"),
    }


@pytest.mark.parametrize("form", FORMS)
def test_prefill_gives_the_logits_of_transformers(
    paths: dict[str, Path], model: Any, form: str
) -> None:
    logits = Stepper(*load_decoder(paths[form], "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@pytest.mark.parametrize("form", FORMS)
def test_decode_after_a_chunked_prompt_gives_the_logits_of_transformers(
    paths: dict[str, Path], model: Any, form: str
) -> None:
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(paths[form], "f32"), sequences=2)
    stepper.step({0: PROMPT[:20], 1: PROMPT[:4]})
    stepper.step({0: PROMPT[20:41]})
    for position in range(41, 50):
        logits = stepper.step({0: PROMPT[position : position + 1]})
        torch.testing.assert_close(logits, expected[position : position + 1], **TOLERANCE)


def test_both_formats_give_the_same_integers(paths: dict[str, Path]) -> None:
    """They are the same, although the files order codes and rows differently."""
    layers = []
    for form in ("mxfp4", "gguf"):
        files = ModelFiles("m", "gguf" if form == "gguf" else "folder", paths[form])
        layers.append(next(iter(load_model(files, "auto").weights.layers())))
    folder, gguf = (layer.experts for layer in layers)
    assert folder is not None and gguf is not None
    for name in ("gate", "up", "down"):
        for ours, theirs in zip(getattr(folder, name), getattr(gguf, name), strict=True):
            assert isinstance(ours, Affine) and isinstance(theirs, Affine)
            assert (ours.bits, ours.scale.dtype) == (8, np.float16)
            np.testing.assert_array_equal(ours.q, theirs.q)
            np.testing.assert_array_equal(ours.scale, theirs.scale)


def test_sinks_change_the_logits(tmp_path: Path, model: Any) -> None:
    changed = gpt_oss_tensors()
    changed["model.layers.1.self_attn.sinks"] += 1
    folder = write_small_gpt_oss(tmp_path / "m", tensors=changed)
    logits = Stepper(*load_decoder(folder, "f32")).step({0: PROMPT}, all_rows=True)
    assert (logits - expected_logits(model, PROMPT)).abs().max() > 0.05


def test_windows_alternate_and_the_yarn_ramp_is_not_truncated(
    paths: dict[str, Path],
) -> None:
    for form in FORMS:
        files = ModelFiles("m", "gguf" if form == "gguf" else "folder", paths[form])
        spec = load_model(files, "auto").spec
        assert [layer.window for layer in spec.layers] == [WINDOW, 0] * (LAYERS // 2)
        assert isinstance(spec.rope.scaling, YarnScaling) and not spec.rope.scaling.truncate
        assert spec.sinks and spec.qkv_bias and spec.output_bias and not spec.tied_head


def test_missing_keys_of_gpt_oss_get_its_defaults(tmp_path: Path) -> None:
    """The defaults are those of the config class in transformers. The factor of 32 has no effect on
    these few positions."""
    folder = write_small_gpt_oss(tmp_path / "m", "floats")
    path = folder / "config.json"
    lacks = ("rope_scaling", "rope_theta", "layer_types", "attention_bias", "num_key_value_heads")
    has = {"num_key_value_heads": 2, "max_position_embeddings": 131072}
    path.write_text(json.dumps({k: v for k, v in CONFIG.items() if k not in lacks} | has))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(loaded.eval(), PROMPT), **TOLERANCE)
    assert spec_of_folder(folder).max_model_len == 131072


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit 5.0 is not supported"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha 1.0 is not supported"),
        ({"num_local_experts": 7}, r"mlp.router.weight has shape \(6, 64\), expected \(7, 64\)"),
        ({"num_experts_per_tok": 7}, "experts of a token 7 is not in 1..6"),
        (
            {"use_bidirectional_attention": True, "is_causal": False},
            "together with a sliding window",
        ),
    ],
)
def test_unsupported_values_of_gpt_oss_are_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    folder = write_small_gpt_oss(tmp_path / "m", **change)
    with pytest.raises(ModelError, match=message):
        load_model(ModelFiles("m", "folder", folder), "auto")


EXPERT = "model.layers.1.mlp.experts."


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("model.layers.2.self_attn.sinks", None, "layers.2.self_attn.sinks is missing"),
        (f"{EXPERT}down_proj_bias", None, "experts.down_proj.bias is missing"),
        (f"{EXPERT}gate_up_proj_bias", None, "experts.gate_proj.bias is missing"),
        (f"{EXPERT}down_proj_scales", None, "experts.down_proj_scales is missing"),
        (f"{EXPERT}down_proj_blocks", None, "experts.down_proj.weight is missing"),
        ("model.layers.2.self_attn.sinks", np.ones(9, np.float16), r"has shape \(9,\), expected"),
        (
            f"{EXPERT}down_proj_bias",
            np.ones((EXPERTS, FF), np.float16),
            r"down_proj.bias has shape \(6, 96\), expected \(6, 64\)",
        ),
        (
            f"{EXPERT}down_proj_scales",
            np.ones((EXPERTS, WIDTH, 2), np.uint8),
            r"down_proj_scales has shape \(6, 64, 2\), expected \(6, 64, 3\)",
        ),
        (
            f"{EXPERT}down_proj_scales",
            np.ones((EXPERTS, WIDTH, 3), np.int8),
            "down_proj_scales has type I8, expected U8",
        ),
        (
            f"{EXPERT}down_proj_blocks",
            np.ones((EXPERTS, WIDTH, 48), np.uint8),
            r"down_proj_blocks has shape \(6, 64, 48\), expected four dimensions, the last of 16",
        ),
    ],
)
def test_a_tensor_that_is_missing_or_does_not_fit_is_named(
    tmp_path: Path, name: str, values: np.ndarray | None, message: str
) -> None:
    tensors = gpt_oss_tensors()
    del tensors[name]
    if values is not None:
        tensors[name] = values
    folder = write_small_gpt_oss(tmp_path / "m", tensors=tensors)
    with pytest.raises(ModelError, match=message):
        load_model(ModelFiles("m", "folder", folder), "auto")


def test_a_scale_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    tensors = gpt_oss_tensors()
    tensors[f"{EXPERT}down_proj_scales"][3, 5, 1] = 255
    folder = write_small_gpt_oss(tmp_path / "m", tensors=tensors)
    loaded = load_model(ModelFiles("m", "folder", folder), "auto")
    message = "layers.1.mlp.experts.down_proj_scales: a scale of MXFP4 is NaN"
    with pytest.raises(ModelError, match=message):
        list(loaded.weights.layers())


def test_a_gguf_file_without_experts_is_refused(tmp_path: Path) -> None:
    path = write_small_gpt_oss_gguf(tmp_path / "m.gguf", keys={"gpt-oss.expert_count": 0})
    with pytest.raises(ModelError, match=r"gpt-oss\.expert_count is missing"):
        load_model(ModelFiles("m", "gguf", path), "auto")


@pytest.mark.parametrize("eos", [3, [3, 4]])
def test_a_tool_call_ends_a_turn_even_if_the_config_does_not_name_its_token(
    tmp_path: Path, eos: Any
) -> None:
    """The same holds for a GGUF file. The end of a message does not end a turn."""
    folder = write_small_gpt_oss(tmp_path / "m", eos_token_id=eos)
    (folder / "tokenizer.json").write_text("{}")
    contents = {3: "<|return|>", 4: "<|endoftext|>", 5: "<|end|>", 6: "<|call|>"}
    declared = {str(token): {"content": content} for token, content in contents.items()}
    config = {"eos_token": "<|return|>", "added_tokens_decoder": declared}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    stops = load_text_parts(ModelFiles("m", "folder", folder)).stop_ids
    assert stops == ((3, 6) if eos == 3 else (3, 4, 6))
