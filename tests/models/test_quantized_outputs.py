"""Quantized files give nearly the logits of the model that they were made from, in this engine and
in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from hybrid_models import FALCON, MAMBA
from test_decoder import PROMPT, expected_logits
from tokenized_folders import CORPUS, write_folder

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_text_parts
from penstock.quantizing.quantize_model import Job, quantize_model
from penstock.text import load_tokenizer


def run(files: ModelFiles, output: Path, type_name: str) -> Path:
    quantize_model(Job(files, output, type_name), lambda done, total: None)
    return output


def logits_of(path: Path) -> torch.Tensor:
    return Stepper(*load_decoder(path, "f32")).step({0: PROMPT}, all_rows=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True, "attention_bias": True}),
        ("Mistral", {"head_dim": 32}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    ],
)
def test_a_folder_becomes_a_gguf_file_with_the_same_logits(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    files, model = write_folder(tmp_path / "in", name, **options)
    found = logits_of(run(files, tmp_path / "out.gguf", "F32"))
    torch.testing.assert_close(found, expected_logits(model, PROMPT), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("output", "kind", "loss"), [("o.gguf", "Q8_0", 0.06), ("o", "int8", 0.06)]
)
def test_8_bit_weights_lose_little(tmp_path: Path, output: str, kind: str, loss: float) -> None:
    files, model = write_folder(tmp_path / "in")
    found = logits_of(run(files, tmp_path / output, kind))
    expected = expected_logits(model, PROMPT)
    assert (found - expected).std() < loss * expected.std()


@pytest.mark.parametrize("digits", [False, True])
def test_the_tokenizer_of_a_folder_goes_into_the_gguf_file(tmp_path: Path, digits: bool) -> None:
    files, _ = write_folder(tmp_path / "in", digits=digits)
    out = run(files, tmp_path / "out.gguf", "Q8_0")
    parts = [load_text_parts(files), load_text_parts(ModelFiles("out", "gguf", out))]
    assert parts[1].chat_template == parts[0].chat_template
    assert parts[1].eos_token == "<end>" and parts[1].stop_ids == parts[0].stop_ids
    tokenizers = [load_tokenizer(one) for one in parts]
    for text in ["in 2024 it's 12345 don't", "<s> a  b\n\n\tc<end>", *CORPUS]:
        assert tokenizers[1].encode(text) == tokenizers[0].encode(text)


@pytest.mark.parametrize(
    ("name", "options", "family"),
    [("Helium", {"head_dim": 32}, "helium"), ("FalconH1", MAMBA | FALCON, "falcon_h1")],
)
def test_a_family_that_is_not_written_is_refused_by_name(
    tmp_path: Path, name: str, options: dict[str, Any], family: str
) -> None:
    files, _ = write_folder(tmp_path / "in", name, **options)
    with pytest.raises(ModelError, match=f"the family {family} is not written as GGUF"):
        run(files, tmp_path / "out.gguf", "Q8_0")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(("kind", "loss"), [("int4", 0.5), ("int8", 0.06)])
def test_transformers_loads_a_quantized_folder(tmp_path: Path, kind: str, loss: float) -> None:
    pytest.importorskip("compressed_tensors")
    files, model = write_folder(tmp_path / "in")
    out = run(files, tmp_path / "out", kind)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    expected = expected_logits(model, PROMPT)
    with torch.no_grad():
        theirs = loaded(torch.tensor([PROMPT])).logits[0]
    assert (theirs - expected).std() < loss * expected.std()
    torch.testing.assert_close(logits_of(out), theirs, rtol=1e-2, atol=1e-2)


def test_a_folder_has_the_other_files_of_its_source(tmp_path: Path) -> None:
    files, _ = write_folder(tmp_path / "in")
    out = run(files, tmp_path / "out", "int4")
    assert {file.name for file in out.iterdir()} == {file.name for file in files.path.iterdir()}
    same = (files.path / "tokenizer.json").read_bytes()
    assert (out / "tokenizer.json").read_bytes() == same
    with pytest.raises(ModelError, match="already exists"):
        run(files, out, "int4")
    with pytest.raises(ModelError, match="is quantized already"):
        run(ModelFiles("out", "folder", out), tmp_path / "again", "int4")


def test_a_folder_of_experts_is_refused(tmp_path: Path) -> None:
    options = {"moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
    files, _ = write_folder(tmp_path / "in", "Qwen3Moe", **options)
    with pytest.raises(ModelError, match="no packed experts"):
        run(files, tmp_path / "out", "int4")
    assert not (tmp_path / "out.partial").exists()
