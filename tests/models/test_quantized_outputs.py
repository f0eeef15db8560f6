"""Quantized files give nearly the logits of the model that they were made from, in this engine and
in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from decoder_stepper import Stepper, load_decoder
from hybrid_models import FALCON, MAMBA
from safetensors.torch import load_file
from test_decoder import PROMPT, expected_logits
from tokenized_folders import CORPUS, write_folder

from penstock.base.errors import ModelError
from penstock.kernels.column_squares import ColumnSquares
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_text_parts
from penstock.quant.dequantize import dequantize
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from penstock.quantizing import folder_output
from penstock.quantizing.quantize_model import Job, quantize_model, rule_types
from penstock.quantizing.type_plan import parse_rule
from penstock.text import load_tokenizer


def run(
    files: ModelFiles,
    output: Path,
    type_name: str,
    *rules: str,
    importance: ImportanceMatrix | None = None,
) -> Path:
    parsed = tuple(parse_rule(rule, rule_types(output)) for rule in rules)
    job = Job(files, output, type_name, parsed, importance)
    quantize_model(job, lambda done, total: None)
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
    expected, theirs = expected_logits(model, PROMPT), transformers_logits(out)
    assert (theirs - expected).std() < loss * expected.std()
    torch.testing.assert_close(logits_of(out), theirs, rtol=1e-2, atol=1e-2)


def transformers_logits(folder: Path) -> torch.Tensor:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = loaded(torch.tensor([PROMPT])).logits[0]
    return logits


def test_rules_give_matrices_of_a_folder_types_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    files, model = write_folder(tmp_path / "in")
    rules = r"layers\.1\.self_attn\.q_proj=none", "down_proj|[qk]_proj=int8"
    out = run(files, tmp_path / "out", "int4", *rules)
    tensors = load_file(out / "model.safetensors")
    for layer in range(3):
        bits = {"mlp.up_proj": 4, "self_attn.q_proj": 8, "mlp.down_proj": 8}
        for module, own in bits.items():
            name = f"model.layers.{layer}.{module}"
            if (layer, module) == (1, "self_attn.q_proj"):
                assert f"{name}.weight" in tensors and f"{name}.weight_packed" not in tensors
                continue
            _, columns = tensors[f"{name}.weight_shape"].tolist()
            assert tensors[f"{name}.weight_packed"].shape[1] == columns * own // 32
    # transformers must take the bits from the config, this engine takes them from the shapes.
    theirs = transformers_logits(out)
    torch.testing.assert_close(logits_of(out), theirs, rtol=1e-2, atol=1e-2)
    expected = expected_logits(model, PROMPT)
    plain = transformers_logits(run(files, tmp_path / "plain", "int4"))
    assert (theirs - expected).std() < 0.9 * (plain - expected).std()


@pytest.mark.parametrize(
    ("rule", "says"),
    [("q_proj=Q8_0", "a type of int4, int8, none"), ("lm_head=int8", "matches no matrix")],
)
def test_wrong_rules_for_a_folder_are_refused(tmp_path: Path, rule: str, says: str) -> None:
    files, _ = write_folder(tmp_path / "in")
    with pytest.raises(ModelError, match=says):
        run(files, tmp_path / "out", "int4", rule)
    assert not list(tmp_path.glob("out*"))


def importances(columns: int) -> ImportanceMatrix:
    rng = np.random.default_rng(4)
    squares = ColumnSquares(1, columns)
    squares.sums[:] = np.exp(2 * rng.standard_normal((1, columns)))
    squares.counts[:] = 1
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up")
    return ImportanceMatrix({f"blk.{i}.{name}.weight": squares for i in range(3) for name in names})


def test_importances_lower_the_error_of_important_columns_in_a_folder(tmp_path: Path) -> None:
    files, model = write_folder(tmp_path / "in", "Mistral", num_attention_heads=4, head_dim=32)
    matrix = importances(128)
    plain = run(files, tmp_path / "plain", "int4")
    weighted = run(files, tmp_path / "weighted", "int4", importance=matrix)
    name = "model.layers.1.mlp.up_proj.weight"
    wanted = model.state_dict()[name].numpy()
    by = matrix.importance("blk.1.ffn_up.weight")
    losses = []
    for folder in (plain, weighted):
        read = dequantize(open_checkpoint(folder, "bf16").matrix(name))
        losses.append(float((by * (read - wanted) ** 2).sum()))
    assert losses[1] < 0.9 * losses[0]
    # Matrices without importances are those of the run without.
    down = "model.layers.1.mlp.down_proj.weight_packed"
    files_of = [load_file(folder / "model.safetensors")[down] for folder in (plain, weighted)]
    assert torch.equal(*files_of)


def test_importances_of_another_model_are_refused_for_a_folder(tmp_path: Path) -> None:
    files, _ = write_folder(tmp_path / "in")
    with pytest.raises(ModelError, match="64 values, but the tensor has 128 columns"):
        run(files, tmp_path / "out", "int4", importance=importances(64))
    other = ImportanceMatrix({"other.weight": ColumnSquares(1, 128)})
    with pytest.raises(ModelError, match="none of its names is a matrix"):
        run(files, tmp_path / "out", "int4", importance=other)
    assert not list(tmp_path.glob("out*"))


def test_a_complete_file_of_other_importances_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, _ = write_folder(tmp_path / "in")
    wanted = run(files, tmp_path / "wanted", "int4", importance=importances(128))
    with monkeypatch.context() as patched:
        patched.setattr(folder_output, "_copy_other_files", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(files, tmp_path / "out", "int4")
    out = run(files, tmp_path / "out", "int4", importance=importances(128))
    both = [(folder / "model.safetensors").read_bytes() for folder in (out, wanted)]
    assert both[0] == both[1]


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
