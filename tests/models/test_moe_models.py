"""Mixtures of experts give the logits of `transformers`, from a folder and from GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from gguf_export import export_gguf
from test_decoder import PROMPT, SMALL, TOLERANCE, expected_logits

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model

QWEN = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "head_dim": 32,
}
MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 moe": ("Qwen3Moe", QWEN),
    "qwen3 moe with shares of all": ("Qwen3Moe", QWEN | {"norm_topk_prob": False}),
    "qwen3 moe with dense layers": ("Qwen3Moe", QWEN | {"mlp_only_layers": [1]}),
    "qwen3 moe in every other layer": (
        "Qwen3Moe",
        QWEN | {"decoder_sparse_step": 2, "num_hidden_layers": 4},
    ),
    "mixtral": ("Mixtral", MIXTRAL),
    "mixtral with a window": ("Mixtral", MIXTRAL | {"sliding_window": 7}),
}


def random_model(name: str, options: dict[str, Any]) -> Any:
    """Return a float32 model with weights large enough to expose errors."""
    config = getattr(transformers, f"{name}Config")(**(SMALL | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = random_model(*CASES[request.param])
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, model


def test_a_folder_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_chunks_and_batches_give_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(folder), sequences=2)
    stepper.step({0: PROMPT[:9], 1: PROMPT[:4]})
    logits = stepper.step({1: PROMPT[4:6], 0: PROMPT[9:]})
    torch.testing.assert_close(logits[0], expected[5], **TOLERANCE)
    torch.testing.assert_close(logits[1], expected[-1], **TOLERANCE)


@pytest.mark.parametrize(("name", "options"), [("Qwen3Moe", QWEN), ("Mixtral", MIXTRAL)])
def test_float_gguf_gives_the_logits_of_transformers(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    model = random_model(name, options)
    export_gguf(model, tmp_path / "m.gguf")
    logits = Stepper(*load_decoder(tmp_path / "m.gguf")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_f32_mode_computes_with_the_exact_values_of_quantized_experts(
    tmp_path: Path, kind: str
) -> None:
    gguf = pytest.importorskip("gguf")
    model = random_model("Qwen3Moe", QWEN)
    export_gguf(model, tmp_path / "m.gguf", kind)
    number = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and ".mlp.gate." not in parameter_name:
                packed = gguf.quants.quantize(parameter.numpy(), number)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, number)))
    logits = Stepper(*load_decoder(tmp_path / "m.gguf", "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_every_matrix_of_a_stack_keeps_its_own_type(tmp_path: Path) -> None:
    model = random_model("Qwen3Moe", QWEN)
    export_gguf(model, tmp_path / "m.gguf", "Q8_0")
    loaded = load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")
    experts = loaded.weights.layer(0).experts
    assert experts is not None and experts.shape == (8, 32, 64)
    assert {matrix.bits for matrix in experts.gate + experts.up + experts.down} == {8}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"qwen3moe.expert_used_count": 9}, "experts of a token 9 is not in 1..8"),
        ({"qwen3moe.expert_count": 1 << 31}, "number of experts 2147483648 is not in 1..1024"),
        ({"qwen3moe.expert_count": 7}, r"ffn_gate_inp.weight has shape \(8, 64\), expected \(7,"),
        ({"qwen3moe.expert_gating_func": 2}, "expert_gating_func 2 is not supported"),
        ({"qwen3moe.expert_shared_count": 1}, "expert_shared_count 1 is not supported"),
        ({"qwen3moe.expert_weights_scale": 2.5}, "expert_weights_scale 2.5 is not supported"),
        ({"qwen3moe.expert_feed_forward_length": 16}, "ffn_gate_exps.weight has shape"),
    ],
)
def test_unsupported_metadata_of_experts_is_named(
    tmp_path: Path, extra: dict[str, int | float], message: str
) -> None:
    export_gguf(random_model("Qwen3Moe", QWEN), tmp_path / "m.gguf", extra_keys=extra)
    with pytest.raises(ModelError, match=message):
        load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")


@pytest.mark.parametrize("renormalize", [True, False])
def test_expert_weight_normalization_is_read_from_the_file(
    tmp_path: Path, renormalize: bool
) -> None:
    keys = {"qwen3moe.expert_weights_norm": renormalize}
    export_gguf(random_model("Qwen3Moe", QWEN), tmp_path / "m.gguf", extra_keys=keys)
    spec = load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto").spec
    routings = {layer.experts.routing for layer in spec.layers if layer.experts}
    assert {routing.renormalize for routing in routings} == {renormalize}


def test_a_stacked_tensor_gives_a_matrix_for_each_expert(tmp_path: Path) -> None:
    """As in newer folders of other families, floats are views of the mapped file."""
    from safetensors.numpy import save_file

    from penstock.quant.safetensors.safetensors_file import SafetensorsFile

    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    save_file({"experts": values, "flat": values[0]}, tmp_path / "a.safetensors")
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert [matrix.data.tolist() for matrix in file.stack("experts")] == values.tolist()
    with pytest.raises(ModelError, match="flat: expected matrices"):
        file.stack("flat")
