"""A model read from GGUF gives the logits of the same model in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from gguf_export import GGUF_NAMES, export_gguf, interleave
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_decoder import (
    BEYOND,
    GEMMA3,
    GRANITE,
    LLAMA3,
    PROMPT,
    SMALL,
    TOLERANCE,
    WITHIN,
    expected_logits,
)

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model, load_text_parts
from penstock.models.tokenizer.tokenizer_data import TokenizerData


def small_model(name: str, **options: Any) -> Any:
    config_name = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**(SMALL | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


def logits_of(path: Path, dtype: Any = "auto") -> torch.Tensor:
    return Stepper(*load_decoder(path, dtype)).step({0: PROMPT}, all_rows=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"attention_bias": True}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
        ("Gemma3", GEMMA3),
        ("Granite", GRANITE),
        ("Granite", {"tie_word_embeddings": True}),
        ("Phi3", {"sliding_window": 7}),
        ("Phi3", {"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}),
        ("Glm4", {"head_dim": 16}),
        ("Glm4", {"head_dim": 32, "attention_bias": False, "tie_word_embeddings": True}),
        ("Glm", {"head_dim": 16}),
        ("Ernie4_5", {"head_dim": 32}),
        ("Ernie4_5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": True}),
        ("SeedOss", {"head_dim": 32}),
        ("Phi3", BEYOND),
        ("Phi3", WITHIN),
    ],
)
def test_float_gguf_gives_the_logits_of_transformers(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    model = small_model(name, **options)
    export_gguf(model, tmp_path / "m.gguf")
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16", "BF16"])
def test_f32_mode_computes_with_the_exact_quantized_values(tmp_path: Path, kind: str) -> None:
    """This includes the reordered rows of q and k."""
    model = small_model("Llama")
    export_gguf(model, tmp_path / "m.gguf", kind)
    number = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                packed = gguf.quants.quantize(parameter.numpy(), number)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, number)))
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf", "f32"), expected_logits(model, PROMPT), **TOLERANCE
    )


# Offset of the float16 scale in a block, and a scale for which random weights have a usual size.
RANDOM_TYPES = {
    "IQ1_S": (0, 0.02),
    "IQ2_XXS": (0, 0.003),
    "IQ2_XS": (0, 0.003),
    "IQ2_S": (0, 0.003),
    "IQ3_XXS": (0, 0.001),
    "IQ3_S": (0, 0.001),
    "IQ4_XS": (0, 0.0001),
    "TQ1_0": (52, 0.15),
    "TQ2_0": (64, 0.15),
    "Q3_K": (108, 0.002),
}


def random_blocks(values: np.ndarray, kind: str) -> np.ndarray:
    """Return blocks for a matrix of the shape of `values`, which seeds them, with random quants
    and scales of a usual size."""
    offset, scale = RANDOM_TYPES[kind]
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rng = np.random.default_rng(values.view(np.uint8).reshape(-1)[:64])
    raw = rng.integers(0, 256, (len(values), values.shape[1] // block, size), np.uint8)
    scales = (scale * rng.uniform(0.5, 1.5, raw.shape[:2])).astype("<f2")
    raw[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return raw.reshape(len(values), -1)


@pytest.mark.parametrize("kind", RANDOM_TYPES)
def test_types_that_the_package_cannot_make_give_the_logits_of_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    number = gguf.GGMLQuantizationType[kind]
    make = gguf.quants.quantize
    monkeypatch.setattr(
        gguf.quants,
        "quantize",
        lambda values, wanted: (
            random_blocks(values, kind) if wanted == number else make(values, wanted)
        ),
    )
    model = small_model("Qwen2", hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    export_gguf(model, tmp_path / "m.gguf", kind)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                packed = random_blocks(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, number)))
    expected = expected_logits(model, PROMPT)
    exact = logits_of(tmp_path / "m.gguf", "f32")
    torch.testing.assert_close(exact, expected, **TOLERANCE)
    fast = logits_of(tmp_path / "m.gguf")
    # the error of 8-bit activations; a misplaced weight would give an error of 1
    assert float((fast - expected).std() / expected.std()) < 0.1


def test_rope_factors_of_the_file_divide_the_frequencies(tmp_path: Path) -> None:
    """GGUF files have Llama 3 scaling as a tensor of factors."""
    model = small_model("Llama", rope_parameters=LLAMA3)
    plain = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    export_gguf(model, tmp_path / "m.gguf", extra_tensors={"rope_freqs.weight": factors})
    torch.testing.assert_close(
        logits_of(tmp_path / "m.gguf"), expected_logits(model, PROMPT), **TOLERANCE
    )


def test_the_names_of_this_export_are_those_of_the_gguf_package() -> None:
    llama = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    fused = gguf.get_tensor_name_map(gguf.MODEL_ARCH.PHI3, 1)
    for old, new in GGUF_NAMES.items():
        if ("norm" in old and "self_attn" in old) or old == "model.layers.":
            continue
        if "mlp.gate." in old or "experts" in old:  # tensors of experts
            continue
        full = old if old.startswith(("model.", "lm_head")) else f"model.layers.0.{old}"
        expected = new if full == old else f"blk.0.{new}"
        tensors = fused if "qkv" in old or "gate_up" in old else llama
        assert tensors.get_name(full.rstrip(".")) == expected.rstrip(".")


def test_interleaving_pairs_the_halves() -> None:
    assert interleave(np.arange(8), 1).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


TOKENS = ["a", "<s>", "</s>", "<|im_end|>", "<|x|>", "<end_of_turn>"]


def test_text_parts_name_every_end_of_a_turn(tmp_path: Path) -> None:
    export_gguf(small_model("Llama"), tmp_path / "m.gguf", tokens=TOKENS)
    parts = load_text_parts(ModelFiles("m", "gguf", tmp_path / "m.gguf"))
    assert isinstance(parts.tokenizer, TokenizerData)
    assert parts.tokenizer.tokens == TOKENS
    assert parts.tokenizer.merges == ["a b"]
    assert parts.tokenizer.add_bos is False
    assert (parts.bos_token, parts.eos_token) == ("<s>", "</s>")
    assert parts.stop_ids == (2, 3)  # <end_of_turn> is an ordinary token here
    assert parts.chat_template == "{{ messages }}"


def test_the_template_for_requests_with_tools_is_read_too(tmp_path: Path) -> None:
    export_gguf(small_model("Llama"), tmp_path / "m.gguf", tokens=TOKENS)
    assert load_text_parts(ModelFiles("m", "gguf", tmp_path / "m.gguf")).tool_template == (
        "{{ tools }}"
    )


def test_the_end_of_a_harmony_message_does_not_end_a_turn(tmp_path: Path) -> None:
    tokens = ["a", "b", "<|return|>", "<|end|>", "<|call|>", "<|start|>", "<|endoftext|>"]
    export_gguf(small_model("Llama"), tmp_path / "m.gguf", tokens=tokens)
    parts = load_text_parts(ModelFiles("m", "gguf", tmp_path / "m.gguf"))
    assert [tokens[token] for token in parts.stop_ids] == [
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
    ]


def test_the_end_mark_of_other_models_ends_a_turn(tmp_path: Path) -> None:
    tokens = ["a", "b", "</s>", "<|end|>", "<|user|>"]
    export_gguf(small_model("Llama"), tmp_path / "m.gguf", tokens=tokens)
    parts = load_text_parts(ModelFiles("m", "gguf", tmp_path / "m.gguf"))
    assert [tokens[token] for token in parts.stop_ids] == ["</s>", "<|end|>"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(["a", "b"], "eos_token_id 2"), (TOKENS * 20, "tokens has 120 entries")],
)
def test_a_vocabulary_that_does_not_fit_is_refused(
    tmp_path: Path, tokens: list[str], message: str
) -> None:
    export_gguf(small_model("Llama"), tmp_path / "m.gguf", tokens=tokens)
    with pytest.raises(ModelError, match=message):
        load_text_parts(ModelFiles("m", "gguf", tmp_path / "m.gguf"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("export") / "m.gguf"
    export_gguf(small_model("Llama", num_hidden_layers=1), path, "Q8_0", tokens=TOKENS)
    return path.read_bytes()


@given(data=st.data())
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_corrupt_header_is_a_model_error_or_another_model(
    tmp_path: Path, exported: bytes, data: st.DataObject
) -> None:
    header_size = exported.index(b"blk.0.attn_q.weight") + 64
    spoiled = bytearray(exported)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, header_size))
        spoiled[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(spoiled)
    files = ModelFiles("m", "gguf", path)
    for load in (
        lambda: list(load_model(files, "auto").weights.layers()),
        lambda: load_text_parts(files),
    ):
        try:
            load()
        except ModelError as error:
            assert str(path) in str(error)
