"""Models in 8-bit floats give the logits of `transformers` with the dequantized weights; and the
loss of quality by 8 bits and by bfloat16 storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper
from safetensors.torch import load_file, save_file

from penstock.base.errors import ModelError
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.weights import Dense, Float8
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from tests.support.checkpoints.float8_checkpoints import Form, write_float8

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
FORMS: list[Form] = ["fp8-block", "fp8-tensor", "channel", "group"]

# KL divergence in nats per token from 8 bits, and from bfloat16. Measured: 0.0075 to 0.0097, and
# 3.3e-5 to 3.7e-5.
FLOAT8_KL, BFLOAT16_KL = 0.02, 1e-4


MODELS: dict[str, dict[str, Any]] = {"Qwen3": {"head_dim": 48}, "Phi3": {"pad_token_id": 0}}


@pytest.fixture(scope="module", params=list(MODELS))
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A float32 folder and its model. The matrices do not divide into whole blocks, and the second
    half of their columns is eight times as large, so that scales differ. In fused projections,
    blocks span two of them."""
    config = getattr(transformers, f"{request.param}Config")(
        hidden_size=192,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        **MODELS[request.param],
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.1)
            if "proj" in name:
                parameter[:, :128] /= 8
    folder = tmp_path_factory.mktemp("float8") / "plain"
    model.save_pretrained(folder)
    return folder, model


def logits(folder: Path, held: Float8Storage) -> torch.Tensor:
    """Return the logits of every token of the prompt."""
    model = load_model(ModelFiles("m", "folder", folder), "auto", float8=held)
    ops = ReferenceOps()
    decoder = Decoder(model.spec, model.weights, ops, max_model_len=256)
    return Stepper(decoder, ops).step({0: PROMPT}, all_rows=True)


@torch.no_grad()
def expected(model: Any, meant: dict[str, torch.Tensor]) -> torch.Tensor:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(meant)
    result = model(torch.tensor([PROMPT])).logits[0]
    model.load_state_dict(before)
    return result


def divergence(truth: torch.Tensor, ours: torch.Tensor) -> float:
    """Return the mean KL divergence per token in nats."""
    wide = [scores.double().log_softmax(-1) for scores in (truth, ours)]
    return float((wide[0].exp() * (wide[0] - wide[1])).sum(-1).mean())


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_transformers_with_dequantized_weights(
    plain: tuple[Path, Any], tmp_path: Path, form: Form
) -> None:
    folder, model = plain
    meant = write_float8(folder, tmp_path / "m", form)
    kept = load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto", float8="float8")
    assert all(isinstance(part, Float8) for part in kept.weights.layer(0).qkv.parts)
    torch.testing.assert_close(
        logits(tmp_path / "m", "float8"), expected(model, meant), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_storage_adds_almost_no_divergence(
    plain: tuple[Path, Any], tmp_path: Path, form: Form
) -> None:
    folder, model = plain
    meant = write_float8(folder, tmp_path / "m", form)
    found = divergence(expected(model, meant), logits(tmp_path / "m", "bf16"))
    assert 0 < found < BFLOAT16_KL


@pytest.mark.parametrize("form", FORMS)
def test_8_bits_add_the_known_divergence(
    plain: tuple[Path, Any], tmp_path: Path, form: Form
) -> None:
    folder, model = plain
    write_float8(folder, tmp_path / "m", form)
    truth = expected(model, model.state_dict())
    assert 0 < divergence(truth, logits(tmp_path / "m", "float8")) < FLOAT8_KL


def turned(scale: torch.Tensor) -> torch.Tensor:
    """Transpose the order of the scales, as if they were read in column order."""
    return scale.T.contiguous().reshape(scale.shape)


@pytest.mark.parametrize("wrong", [turned, lambda s: s.flip(1), torch.reciprocal, torch.ones_like])
def test_transposed_scales_increase_the_divergence(
    plain: tuple[Path, Any], tmp_path: Path, wrong: Any
) -> None:
    folder, model = plain
    write_float8(folder, tmp_path / "m", "fp8-block")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    changed = {name: wrong(t) if "scale" in name else t for name, t in tensors.items()}
    save_file(changed, tmp_path / "m" / "model.safetensors")
    truth = expected(model, model.state_dict())
    assert divergence(truth, logits(tmp_path / "m", "float8")) > 3 * FLOAT8_KL


def test_float32_mode_rounds_each_value_once(plain: tuple[Path, Any], tmp_path: Path) -> None:
    meant = write_float8(plain[0], tmp_path / "m", "fp8-block", torch.bfloat16)
    model = load_model(ModelFiles("m", "folder", tmp_path / "m"), "f32")
    down = model.weights.layer(1).down.parts[0]
    assert isinstance(down, Dense) and down.dtype == "f32"
    name = "model.layers.1.mlp.down_proj.weight"
    torch.testing.assert_close(torch.from_numpy(down.data), meant[name], atol=0, rtol=0)


def test_an_embedding_of_8_bits_is_refused(plain: tuple[Path, Any], tmp_path: Path) -> None:
    write_float8(plain[0], tmp_path / "m", "channel")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    name = "model.embed_tokens.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    tensors["model.embed_tokens.weight_scale"] = torch.ones(64, 1)
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    model = load_model(ModelFiles("m", "folder", tmp_path / "m"), "auto", float8="float8")
    with pytest.raises(ModelError, match=f"{name}: an embedding of 8-bit floats"):
        model.weights.embedding()
