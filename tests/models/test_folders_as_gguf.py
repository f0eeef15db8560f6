"""Folders of each family become GGUF files with the tensors that llama.cpp's converter writes and
with the logits of `transformers`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemma_export
import gemma_models
import gguf
import gguf_expert_export
import gguf_export
import gguf_hybrid_export
import hybrid_models
import numpy as np
import pytest
import random_models
import test_decoder
import test_dense_families
import test_expert_families
import test_gguf_models
import test_hybrid_gguf
import test_latent_models
import test_moe_models
import test_text_backbones
import torch
from decoder_stepper import Stepper, load_decoder
from tokenized_folders import write_byte_level

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.quantizing.quantize_model import Job, quantize_model
from penstock.quantizing.report import Report
from tests.support.checkpoints import small_gpt_oss

VOCAB = 320
PROMPT = hybrid_models.PROMPT
TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}
Export = Callable[[Any, Path, Path], None]


def by_model(export: Callable[..., None]) -> Export:
    return lambda model, folder, path: export(model, path)


DENSE, EXPERTS, GEMMA, HYBRID = (
    by_model(gguf_export.export_gguf),
    by_model(gguf_expert_export.export_experts),
    by_model(gemma_export.export),
    lambda model, folder, path: gguf_hybrid_export.convert(folder, path),
)
Case = tuple[Callable[[], Any], Export]


def wide(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"vocab_size": VOCAB}


def cases() -> dict[str, Case]:
    """Return the models of the tests of GGUF readers, and the exporters that these use."""
    found: dict[str, Case] = {}
    for name, (kind, options) in test_decoder.CASES.items():
        if kind not in ("Helium", "Ministral"):  # no GGUF form
            found[name] = (
                lambda kind=kind, own=options: test_gguf_models.small_model(kind, **wide(own)),
                DENSE,
            )
    for name, (kind, options) in test_dense_families.CASES.items():
        found[name] = (
            lambda kind=kind, own=options: test_dense_families.small_model(kind, wide(own)),
            DENSE,
        )
    for name, (kind, options) in test_moe_models.CASES.items():
        found[name] = (
            lambda kind=kind, own=options: test_moe_models.random_model(kind, wide(own)),
            DENSE,
        )
    for name, (kind, options) in test_expert_families.CASES.items():
        found[name] = (
            lambda kind=kind, own=options: random_models.random_model(kind, wide(own)),
            EXPERTS,
        )
    for name, (kind, options) in test_latent_models.CASES.items():
        found[name] = (
            lambda kind=kind, own=options: random_models.random_model(kind, wide(own)),
            EXPERTS,
        )
    for name in gemma_models.CASES:
        inputs = {"vocab_size_per_layer_input": VOCAB} if name == "gemma4 e2b" else {}
        found[name] = (
            lambda name=name, own=inputs: gemma_models.build(name, vocab_size=VOCAB, **own),
            GEMMA,
        )
    for name, (kind, options) in test_hybrid_gguf.CASES.items():
        found[name] = (
            lambda kind=kind, own=options: hybrid_models.build(kind, wide(own)),
            HYBRID,
        )
    found[GEMMA2] = (
        lambda: gemma_models.build("gemma2", vocab_size=VOCAB, query_pre_attn_scalar=16),
        GEMMA,
    )
    return found


GEMMA2 = "gemma2 with the usual scale"
CASES = cases()
NOT_WRITTEN = "is not written as GGUF"
REFUSED: dict[str, str] = {
    "qwen2 with a window from layer 1": r"layers\[0\].window: 0 and 5",
    "gemma2": "attention_scale",
    "gemma2 without caps": "attention_scale",
    "gemma3 with linear rope, a scale of its own and an untied head": "attention_scale",
    "gemma3n": NOT_WRITTEN,
    "llama4": NOT_WRITTEN,
    "llama4 with dense layers": NOT_WRITTEN,
    "falcon_h1": NOT_WRITTEN,
    "falcon_h1 with a norm": NOT_WRITTEN,
    "nemotron_h with experts": NOT_WRITTEN,
    "nemotron_h without experts": NOT_WRITTEN,
    "deepseek v3 with yarn and biases": NOT_WRITTEN,
    "deepseek v3 rotated by halves": NOT_WRITTEN,
    "qwen3 moe with dense layers": r"layers\[1\].experts: None",
    "qwen3 moe in every other layer": "leading_dense_block_count 1 is not supported",
    "qwen2 moe with dense layers, without biases": "layers",
    "ernie4_5 moe in some layers": "layers",
    "glm4 moe lite with dense layers": "layers",
    "phimoe of another jitter, without biases": "layers",
}
"""Cases that a GGUF file cannot express -> the reason."""
FAST = ("llama", GEMMA2, "phi3", "qwen3_5 with tiled heads", "lfm2", "qwen2 moe")
"""Cases of the suite that is run often: each covers another part of the writer."""
OTHER_TENSORS = ("llama with llama3 rope", "exaone4 without windows", "gemma4 26b")
"""Cases whose exporter leaves out the factors of RoPE, which llama.cpp's converter writes, or joins
gates and ups of experts."""


def report_of(folder: Path, output: Path, type_name: str = "F32") -> Report:
    write_byte_level(folder)
    job = Job(ModelFiles("tiny", "folder", folder), output, type_name)
    return quantize_model(job, lambda done, total: None)


def run(folder: Path, output: Path, type_name: str = "F32") -> Path:
    report_of(folder, output, type_name)
    return output


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    found = {}
    for one in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(one.data, one.tensor_type)
        found[one.name] = values.reshape(one.shape[::-1])
    return found


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in FAST else pytest.mark.slow)
        for case in CASES
        if case not in REFUSED
    ],
)
def test_a_folder_becomes_the_file_of_the_converter(tmp_path: Path, case: str) -> None:
    build, export = CASES[case]
    model = build()
    model.save_pretrained(tmp_path / "in")
    output = run(tmp_path / "in", tmp_path / "out.gguf")
    logits = Stepper(*load_decoder(output, "f32")).step({0: PROMPT}, all_rows=True)
    expected = random_models.expected_logits(model, PROMPT)
    torch.testing.assert_close(logits, expected, **TOLERANCE)
    if case in OTHER_TENSORS:
        return
    export(model, tmp_path / "in", tmp_path / "theirs.gguf")
    own, theirs = tensors_of(output), tensors_of(tmp_path / "theirs.gguf")
    assert own.keys() == theirs.keys()
    for name, values in theirs.items():
        both = own[name].squeeze(), values.squeeze()  # a vector may be a matrix of one row
        np.testing.assert_allclose(*both, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_gguf_files_cannot_express_is_refused(tmp_path: Path, case: str) -> None:
    CASES[case][0]().save_pretrained(tmp_path / "in")
    with pytest.raises(ModelError, match=REFUSED[case]):
        run(tmp_path / "in", tmp_path / "out.gguf")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gemma4", "Mistral3", "Qwen3_5", "Qwen2_5_VL"])
def test_the_language_model_of_a_multimodal_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(test_text_backbones.SMALL, "vocab_size", VOCAB)
    model = test_text_backbones.build(name)
    model.save_pretrained(tmp_path / "in")
    output = tmp_path / "out.gguf"
    report = report_of(tmp_path / "in", output)
    assert report.notes == (f"only the language model of {type(model).__name__} is written",)
    prompt = test_text_backbones.PROMPT
    logits = Stepper(*load_decoder(output, "f32")).step({0: prompt}, all_rows=True)
    torch.testing.assert_close(logits, test_text_backbones.expected_logits(model), **TOLERANCE)


@pytest.mark.parametrize("form", ["floats", "mxfp4"])
def test_experts_of_gpt_oss_keep_their_numbers_in_mxfp4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    monkeypatch.setattr(small_gpt_oss, "VOCAB", VOCAB)
    own = small_gpt_oss.gpt_oss_tensors()
    folder = small_gpt_oss.write_small_gpt_oss(tmp_path / "in", form, own, vocab_size=VOCAB)
    output = run(folder, tmp_path / "out.gguf", "MXFP4")
    theirs = small_gpt_oss.write_small_gpt_oss_gguf(tmp_path / "theirs.gguf", own)
    found, expected = tensors_of(output), tensors_of(theirs)
    assert found.keys() == expected.keys()
    for name in expected:
        if "exps" in name:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    types = {one.name: one.tensor_type.name for one in gguf.GGUFReader(output).tensors}
    assert types["blk.0.ffn_gate_exps.weight"] == "MXFP4"
    assert types["blk.0.ffn_gate_exps.bias"] == types["blk.0.attn_sinks.weight"] == "F32"
    prompt = PROMPT[:9]
    logits = [
        Stepper(*load_decoder(path, "f32")).step({0: prompt}, all_rows=True)
        for path in (run(folder, tmp_path / "floats.gguf"), theirs)
    ]
    torch.testing.assert_close(*logits, **TOLERANCE)
