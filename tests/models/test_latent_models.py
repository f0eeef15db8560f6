"""Models with latent attention give the logits of `transformers`, from a folder and from GGUF."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from gguf_expert_export import export_experts
from random_models import PROMPT, SMALL, TOLERANCE, expected_logits, random_model, randomize
from safetensors.numpy import load_file, save_file

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.weight_slices import size_bytes

MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 40,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
GROWING = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 8}
GROWING |= {"llama_4_scaling_beta": 0.3}
LITE = MLA | {"q_lora_rank": None, "first_k_dense_replace": 1}
GROUPS = {"n_group": 4, "topk_group": 2}
V3 = MLA | GROUPS | {"first_k_dense_replace": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v2 lite": ("DeepseekV2", LITE),
    "deepseek v2 with norm_topk_prob, which transformers ignores": (
        "DeepseekV2",
        LITE | {"norm_topk_prob": True, "routed_scaling_factor": 2.0, "num_hidden_layers": 2},
    ),
    "deepseek v2 with yarn": ("DeepseekV2", MLA | {"rope_parameters": YARN}),
    "deepseek v2 with groups": (
        "DeepseekV2",
        MLA | GROUPS | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
    ),
    "deepseek v3": ("DeepseekV3", V3),
    "deepseek v3 with yarn and biases": (
        "DeepseekV3",
        V3 | {"rope_parameters": YARN | {"mscale": 1.0}, "attention_bias": True},
    ),
    "deepseek v3 rotated by halves": (
        "DeepseekV3",
        V3 | {"rope_interleave": False, "norm_topk_prob": False},
    ),
    "kimi k2": (
        "DeepseekV3",
        MLA | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_mtp_layers": 0},
    ),
    "glm4 moe lite": ("Glm4MoeLite", MLA),
    "glm4 moe lite with dense layers": (
        "Glm4MoeLite",
        MLA | {"mlp_layer_types": ["sparse", "dense", "sparse"], "n_shared_experts": 1},
    ),
    "mistral4": ("Mistral4", MLA | {"rope_parameters": GROWING}),
    "mistral4 with groups and without growth": (
        "Mistral4",
        MLA
        | GROUPS
        | {
            "rope_parameters": GROWING | {"llama_4_scaling_beta": 0.0},
            "first_k_dense_replace": 1,
        },
    ),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one torch thread: more only add waiting for such small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, float32 model) of one case."""
    model = random_model(*CASES[request.param])
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, model


def test_a_folder_gives_the_logits_of_transformers(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_chunks_and_batches_give_the_logits_of_transformers(saved: tuple[Path, Any]) -> None:
    folder, model = saved
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(folder), sequences=2)
    stepper.step({0: PROMPT[:9], 1: PROMPT[:4]})
    logits = stepper.step({1: PROMPT[4:6], 0: PROMPT[9:22]})
    torch.testing.assert_close(logits[0], expected[5], **TOLERANCE)
    torch.testing.assert_close(logits[1], expected[21], **TOLERANCE)
    logits = stepper.step({0: PROMPT[22:]})
    torch.testing.assert_close(logits[0], expected[22], **TOLERANCE)


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "split"])
@pytest.mark.parametrize(
    "case",
    [
        "deepseek v2 lite",
        "deepseek v2 with yarn",
        "deepseek v2 with groups",
        "deepseek v3",
        "kimi k2",
        "glm4 moe lite",
        "mistral4",
    ],
)
def test_gguf_gives_the_logits_of_transformers(tmp_path: Path, case: str, joined: bool) -> None:
    """Older files have keys and values of latent attention in one matrix."""
    model = random_model(*CASES[case])
    export_experts(model, tmp_path / "m.gguf", joined=joined)
    logits = Stepper(*load_decoder(tmp_path / "m.gguf")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@torch.no_grad()
def round_matrices(model: Any, kind: str, joined: bool) -> None:
    """Round the matrices of `model` as a GGUF file of `kind` does, except the routers. In a file
    that is not `joined`, the groups of keys lie along their columns."""
    number = gguf.GGMLQuantizationType[kind]

    def rounded(values: np.ndarray) -> np.ndarray:
        packed = gguf.quants.quantize(np.ascontiguousarray(values), number)
        return gguf.quants.dequantize(packed, number)

    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or ".mlp.gate." in name:
            continue
        values = parameter.numpy()
        if name.endswith("kv_b_proj.weight") and not joined:
            config = model.config
            size = config.qk_nope_head_dim + config.v_head_dim
            by_head = values.reshape(config.num_attention_heads, size, -1)
            keys, own = np.split(by_head, [config.qk_nope_head_dim], axis=1)
            keys = rounded(keys.swapaxes(1, 2)).swapaxes(1, 2)
            values = np.concatenate([keys, rounded(own)], axis=1).reshape(values.shape)
        else:
            values = rounded(values)
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16"])
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "split"])
def test_f32_mode_computes_with_the_exact_quantized_values(
    tmp_path: Path, kind: str, joined: bool
) -> None:
    options = V3 | {"qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
    model = random_model("DeepseekV3", options)
    export_experts(model, tmp_path / "m.gguf", kind, joined=joined)
    round_matrices(model, kind, joined)
    logits = Stepper(*load_decoder(tmp_path / "m.gguf", "f32")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@pytest.mark.parametrize("kind", ["Q4_0", "F16", "F32"])
def test_float_matrices_are_counted_as_they_are_stored(tmp_path: Path, kind: str) -> None:
    """The matrices of keys and values are stored as float16 if the file has integers."""
    options = V3 | {"qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
    export_experts(random_model("DeepseekV3", options), tmp_path / "m.gguf", kind)
    model = load_model(ModelFiles("m", "gguf", tmp_path / "m.gguf"), "auto")
    layer = model.weights.layer(1)
    assert {part.dtype for part in layer.mixer.keys.parts} == {"f32" if kind == "F32" else "f16"}
    vectors = 4 * sum(
        math.prod(info.shape)
        for info in GgufFile(tmp_path / "m.gguf").tensors.values()
        if len(info.shape) == 1
    )
    decoder, _ = load_decoder(tmp_path / "m.gguf")
    assert model.weights.packed_bytes(size_bytes) == decoder.weight_bytes + vectors
    widened = 3 * 4 * 32 * 64 * (2 - 18 / 32) if kind == "Q4_0" else 0
    assert model.extra_bytes == widened


def test_fused_gates_and_ups_of_gguf_are_split(tmp_path: Path) -> None:
    model = random_model(*CASES["mistral4"])
    export_experts(model, tmp_path / "m.gguf", fused=True)
    logits = Stepper(*load_decoder(tmp_path / "m.gguf")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_mistral4_in_a_multimodal_folder_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    text = {**SMALL, **CASES["mistral4"][1], "model_type": "mistral4"}
    vision = {
        "model_type": "pixtral",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Mistral3Config(
        text_config=text, vision_config=vision, image_token_index=63, tie_word_embeddings=False
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = randomize(transformers.Mistral3ForConditionalGeneration(config).float().eval())
    model.save_pretrained(tmp_path)
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def add_layer(folder: Path) -> int:
    """Add a layer after the last to the weights of a folder, as published models have it. Return
    the bytes of its tensors."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    further = {
        name.replace("layers.2.", "layers.3."): values
        for name, values in tensors.items()
        if ".layers.2." in name
    }
    further |= {
        "model.layers.3.eh_proj.weight": np.ones((64, 128), np.float32),
        "model.layers.3.embed_tokens.weight": np.ones((64, 64), np.float32),
    }
    save_file(tensors | further, path)
    return sum(values.nbytes for values in further.values())


def test_a_layer_that_predicts_further_tokens_is_not_read(tmp_path: Path) -> None:
    model = random_model("DeepseekV3", V3)
    model.save_pretrained(tmp_path)
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT})
    added = add_layer(tmp_path)
    assert torch.equal(Stepper(*load_decoder(tmp_path)).step({0: PROMPT}), logits)
    loaded = load_model(ModelFiles("m", "folder", tmp_path), "auto")
    assert (loaded.spec.predicting_layers, loaded.extra_bytes) == (1, -added)


def test_a_further_layer_that_the_config_does_not_name_is_refused(tmp_path: Path) -> None:
    random_model("DeepseekV3", V3 | {"num_mtp_layers": 0}).save_pretrained(tmp_path)
    add_layer(tmp_path)
    with pytest.raises(ModelError, match=r"unexpected tensor model\.layers\.3\."):
        load_decoder(tmp_path)


def test_a_predicting_block_of_gguf_is_not_read(tmp_path: Path) -> None:
    model = random_model("Glm4MoeLite", MLA)
    further = {
        "blk.3.nextn.eh_proj.weight": np.ones((64, 128), np.float32),
        "blk.3.attn_norm.weight": np.ones(64, np.float32),
    }
    keys = {"deepseek2.block_count": 4, "deepseek2.nextn_predict_layers": 1}
    path = tmp_path / "m.gguf"
    export_experts(model, path, extra_tensors=further, extra_keys=keys)
    logits = Stepper(*load_decoder(path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": 0}, "kv_lora_rank 0 is not in"),
        ({"kv_lora_rank": 36}, "kv_lora_rank 36 is not supported, only multiples of 8"),
        ({"kv_lora_rank": 1 << 40}, "kv_lora_rank 1099511627776 is not in"),
        ({"q_lora_rank": -1}, "q_lora_rank -1 is not positive"),
        ({"q_lora_rank": 40}, r"q_a_proj.weight has shape \(48, 64\), expected \(40, 64\)"),
        ({"q_lora_rank": None}, "tensor model.layers.0.self_attn.q_proj.weight is missing"),
        ({"qk_nope_head_dim": -8}, "qk_nope_head_dim -8 is not in"),
        ({"qk_rope_head_dim": 12}, "qk_rope_head_dim 12 is not supported, only multiples of 8"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim 0 is not in"),
        ({"v_head_dim": None}, "v_head_dim 0 is not in"),
        ({"num_attention_heads": 5}, r"self_attn.o_proj.weight has shape \(64, 160\), expected"),
        ({"n_routed_experts": 9}, "n_group 4 does not divide 9 experts"),
        ({"n_group": 0}, "n_group 0 does not divide 8 experts"),
        ({"topk_group": 5}, "topk_group 5 is not in 1..4"),
        ({"num_experts_per_tok": 5}, "experts of a token 5 are more than the 4 in 2 of 4 groups"),
        ({"n_shared_experts": -1}, "n_shared_experts -1 is negative"),
        (
            {"n_shared_experts": 1},
            r"shared_experts.gate_proj.weight has shape \(64, 64\), expected",
        ),
        ({"routed_scaling_factor": 0.0}, "scale of the experts' shares must be positive"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported, only 'sigmoid'"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace -1 is negative"),
        ({"moe_layer_freq": 0}, "moe_layer_freq 0 is not positive"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers -1 is negative"),
        ({"num_nextn_predict_layers": 1 << 40}, "layers that predict tokens 1099511627776 is not"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
        ({"kv_lora_rank": "wide"}, "kv_lora_rank"),
    ],
)
def test_a_config_that_does_not_fit_is_named(
    small_folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    shutil.copytree(small_folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=message) as raised:
        load_model(ModelFiles("m", "folder", tmp_path), "auto")
    assert str(tmp_path) in str(raised.value)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    random_model("DeepseekV3", V3).save_pretrained(folder)
    return folder


def test_unsupported_routing_of_deepseek_v2_is_named(tmp_path: Path) -> None:
    random_model("DeepseekV2", LITE).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"topk_method": "noaux_tc"}))
    with pytest.raises(ModelError, match="topk_method 'noaux_tc' is not supported"):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attention.kv_lora_rank": 24}, "attn_kv_a_mqa.weight has shape"),
        ({"attention.key_length_mla": 8}, "qk_nope_head_dim -8 is not in"),
        ({"rope.dimension_count": 20}, "qk_rope_head_dim 20 is not supported"),
        ({"expert_gating_func": 3}, "expert_gating_func 3 is not supported"),
        ({"expert_group_used_count": 7}, "groups of a token 7 is not in 1..4"),
        ({"expert_count": 6}, "6 experts cannot be divided into 4 groups"),
        ({"nextn_predict_layers": 3}, "block_count 0 is not in"),
        ({"attention.temperature_scale": 0.5}, "temperature_scale 0.5 with a length of 0 is not"),
    ],
)
def test_metadata_of_latent_attention_that_do_not_fit_are_named(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    extra = {f"deepseek2.{key}": value for key, value in keys.items()}
    export_experts(random_model("DeepseekV3", V3), tmp_path / "m.gguf", extra_keys=extra)
    with pytest.raises(ModelError, match=message):
        load_decoder(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "lost", ["attn_kv_a_norm.weight", "attn_v_b.weight", "ffn_up_shexp.weight"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, lost: str) -> None:
    name = f"blk.2.{lost}"
    export_experts(random_model("DeepseekV3", V3), tmp_path / "m.gguf", without=name)
    with pytest.raises(ModelError, match=f"tensor {name} is missing"):
        load_decoder(tmp_path / "m.gguf")
