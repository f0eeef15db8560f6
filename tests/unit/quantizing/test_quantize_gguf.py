"""GGUF files that are quantized to GGUF files: contents, refusals, and interrupted runs."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections import namedtuple
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.quant.encode.recipes import RECIPES
from penstock.quant.importance_file import read_importance
from penstock.quantizing import gguf_output, partial_file
from penstock.quantizing.quantize_model import Job, quantize_model
from penstock.quantizing.type_plan import parse_rule

LAYERS = 8


def tensors(columns: int = 256) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {
        "token_embd.weight": rng.standard_normal((64, columns)),
        "output_norm.weight": rng.standard_normal(columns),
        "output.weight": rng.standard_normal((64, columns)),
    }
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_v", "attn_output", "ffn_up", "ffn_down"):
            found[f"blk.{layer}.{name}.weight"] = rng.standard_normal((32, columns))
        found[f"blk.{layer}.attn_norm.weight"] = rng.standard_normal(columns)
        found[f"blk.{layer}.ffn_gate_inp.weight"] = rng.standard_normal((4, columns))
    found["blk.0.ffn_up_exps.weight"] = rng.standard_normal((4, 32, columns))
    return {name: (values / 16).astype(np.float32) for name, values in found.items()}


def write_source(path: Path, values: dict[str, np.ndarray]) -> ModelFiles:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_key_value("llama.odd", -3, gguf.GGUFValueType.INT16)
    writer.add_token_list(["a", "b c", "\u0120x"])
    writer.add_file_type(0)
    for name, array in values.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelFiles("tiny", "gguf", path)


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    return write_source(tmp_path / "in.gguf", tensors())


def run(
    files: ModelFiles,
    recipe: str,
    *rules: str,
    out: str = "out.gguf",
    imatrix: Path | None = None,
) -> Path:
    path = files.path.parent / out
    importance = None if imatrix is None else read_importance(imatrix)
    job = Job(files, path, recipe, tuple(map(parse_rule, rules)), importance)
    quantize_model(job, lambda done, total: None)
    return path


def types_in(path: Path) -> dict[str, str]:
    return {one.name: one.tensor_type.name for one in gguf.GGUFReader(path).tensors}


def test_each_part_has_the_type_of_the_mixture(files: ModelFiles) -> None:
    found = types_in(run(files, "q4_k_m"))
    assert found["token_embd.weight"] == "Q4_K" and found["output.weight"] == "Q6_K"
    assert found["blk.0.attn_q.weight"] == found["blk.0.ffn_up_exps.weight"] == "Q4_K"
    # The first and last eighth of 8 layers are layers 0 and 7; every third between ends a third.
    more = {layer for layer in range(LAYERS) if found[f"blk.{layer}.ffn_down.weight"] == "Q6_K"}
    assert more == {0, 3, 6, 7}
    assert found["blk.0.attn_norm.weight"] == found["blk.0.ffn_gate_inp.weight"] == "F32"


@pytest.mark.parametrize("name", RECIPES)
def test_numbers_are_near_those_of_the_source(files: ModelFiles, name: str) -> None:
    path = run(files, name)
    for one in gguf.GGUFReader(path).tensors:
        wanted = tensors()[one.name]
        read = gguf.quants.dequantize(one.data, one.tensor_type).reshape(wanted.shape)
        loss = np.square(read - wanted).sum() / np.square(wanted).sum()
        assert loss < (0.09 if name.startswith("Q2") else 0.03), one.name


def test_only_narrow_tensors_of_recurrent_layers_keep_their_type(tmp_path: Path) -> None:
    values = tensors()
    wide = ("ssm_in", "ssm_out", "shortconv.in_proj", "shortconv.out_proj", "attn_gate")
    narrow = ("ssm_conv1d", "ssm_alpha", "ssm_beta", "ssm_ba", "shortconv.conv", "proj", "inp_gate")
    for name in (*wide, *narrow):
        values[f"blk.1.{name}.weight"] = values["blk.1.attn_q.weight"]
    for name in ("per_layer_token_embd", "per_layer_model_proj"):
        values[f"{name}.weight"] = values["token_embd.weight"]
    found = types_in(run(write_source(tmp_path / "in.gguf", values), "Q4_K_M"))
    assert {found[f"blk.1.{name}.weight"] for name in wide} == {"Q4_K"}
    assert {found[f"blk.1.{name}.weight"] for name in narrow} == {"F32"}
    assert found["per_layer_token_embd.weight"] == "Q4_K"
    assert found["per_layer_model_proj.weight"] == "F32"


def test_metadata_are_those_of_the_source(files: ModelFiles) -> None:
    fields = [gguf.GGUFReader(path).fields for path in (files.path, run(files, "Q8_0"))]
    for key, field in fields[0].items():
        if not key.startswith(("GGUF.", "general.file_type")):
            assert fields[1][key].contents() == field.contents(), key
            assert fields[1][key].types == field.types, key
    assert fields[1]["general.file_type"].contents() == 7


def test_a_tied_embedding_has_the_type_of_a_head(tmp_path: Path) -> None:
    tied = {name: values for name, values in tensors().items() if name != "output.weight"}
    found = types_in(run(write_source(tmp_path / "in.gguf", tied), "q4_k_s"))
    assert found["token_embd.weight"] == "Q6_K"


def test_the_first_matching_rule_decides(files: ModelFiles) -> None:
    found = types_in(run(files, "Q4_K_M", r"blk\.[01]\.attn_q=q8_0", "attn_q=Q5_K", "gate_inp=f16"))
    assert found["blk.1.attn_q.weight"] == "Q8_0" and found["blk.2.attn_q.weight"] == "Q5_K"
    assert found["blk.2.ffn_gate_inp.weight"] == "F16"


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("attn_q", "must be PATTERN=TYPE"),
        ("attn_q=Q4_X", "must be PATTERN=TYPE"),
        ("(=Q4_K", "pattern is invalid"),
        ("nothing=Q4_K", "matches no matrix"),
        ("attn_norm=Q4_K", "matches no matrix"),
    ],
)
def test_wrong_rules_are_refused(files: ModelFiles, rule: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        run(files, "Q4_K_M", rule)
    assert os.listdir(files.path.parent) == ["in.gguf"]


@pytest.mark.parametrize(
    ("columns", "wanted", "type_name"),
    [(96, "Q4_K_S", "Q5_0"), (96, "Q5_K_S", "Q5_1"), (96, "Q3_K_S", "IQ4_NL"),
     (96, "Q6_K", "Q8_0"), (96, "Q8_0", "Q8_0"), (80, "Q4_0", "F16"), (80, "Q4_K_S", "F16")],
)  # fmt: skip
def test_columns_that_make_no_whole_blocks_get_another_type(
    tmp_path: Path, columns: int, wanted: str, type_name: str
) -> None:
    files = write_source(tmp_path / "in.gguf", tensors(columns))
    job = Job(files, tmp_path / "out.gguf", wanted)
    report = quantize_model(job, lambda done, total: None)
    assert types_in(job.output)["blk.5.attn_q.weight"] == type_name
    assert any(f"{type_name} instead of" in note for note in report.notes) == (wanted != type_name)


def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    values = tensors()
    values["blk.3.ffn_up.weight"][1, 2] = np.inf
    files = write_source(tmp_path / "in.gguf", values)
    with pytest.raises(ModelError, match=r"in.gguf: blk.3.ffn_up.weight: not all .* finite"):
        run(files, "Q4_K_M")
    assert not (tmp_path / "out.gguf").exists()


def test_an_existing_output_is_left_alone(files: ModelFiles) -> None:
    files.path.with_name("out.gguf").write_bytes(b"mine")
    with pytest.raises(ModelError, match="already exists"):
        run(files, "Q8_0")
    assert files.path.with_name("out.gguf").read_bytes() == b"mine"


def test_an_interrupted_run_continues_after_the_finished_tensors(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(files, "Q4_K_M", out="whole.gguf").read_bytes()
    encode, encoded = gguf_output.encode, []

    def interrupted(*arguments, **more):
        encoded.append(arguments)
        if len(encoded) == 10:
            raise KeyboardInterrupt
        return encode(*arguments, **more)

    monkeypatch.setattr(gguf_output, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(files, "Q4_K_M")
    assert not files.path.with_name("out.gguf").exists()
    first = len(encoded)
    assert run(files, "Q4_K_M").read_bytes() == whole
    assert len(encoded) - first == 46 - 9  # 42 matrices and 4 experts, of which 9 were finished
    assert sorted(os.listdir(files.path.parent)) == ["in.gguf", "out.gguf", "whole.gguf"]


def test_a_run_with_other_types_starts_from_the_beginning(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = run(files, "Q5_K_M", out="whole.gguf").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(partial_file.PartialFile, "publish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(files, "Q4_K_M")
    assert run(files, "Q5_K_M").read_bytes() == wanted


def test_a_disk_that_fills_leaves_nothing(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, pwrite = [], os.pwrite

    def full(*arguments):
        written.append(arguments)
        if len(written) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ModelError, match=r"out.gguf: No space left"):
        run(files, "Q4_K_M")
    assert os.listdir(files.path.parent) == ["in.gguf"]


def test_a_disk_without_enough_space_is_refused_before_the_work(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 2**20))
    with pytest.raises(ModelError, match="more bytes are needed, the disk has 1,048,576 free"):
        run(files, "Q4_K_M")
    assert os.listdir(files.path.parent) == ["in.gguf"]


def test_two_runs_do_not_write_one_file(files: ModelFiles) -> None:
    out = files.path.with_name("out.gguf")
    with (
        partial_file.PartialFile(out, 100, "a"),
        pytest.raises(ModelError, match="another process"),
    ):
        run(files, "Q4_K_M")


def test_a_missing_folder_is_named(files: ModelFiles) -> None:
    with pytest.raises(ModelError, match=r"absent/out.gguf: No such file"):
        run(files, "Q4_K_M", out="absent/out.gguf")


def importances(columns: int = 256) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name: np.exp(rng.standard_normal((values.shape[0] if values.ndim == 3 else 1, columns)))
        for name, values in tensors(columns).items()
        if values.ndim > 1
    }


def write_imatrix(path: Path, values: dict[str, np.ndarray]) -> Path:
    writer = gguf.GGUFWriter(str(path), "")
    writer.add_type("imatrix")
    for name, rows in values.items():
        writer.add_tensor(f"{name}.in_sum2", (rows * 4).astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.full((len(rows), 1), 4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_legacy_imatrix(path: Path, values: dict[str, np.ndarray]) -> Path:
    parts = [struct.pack("<i", len(values))]
    for name, rows in values.items():
        parts.append(struct.pack("<i", len(name)) + name.encode())
        parts.append(struct.pack("<ii", 4, rows.size) + (rows * 4).astype("<f4").tobytes())
    path.write_bytes(b"".join(parts) + struct.pack("<ii", 7, 4) + b"text")
    return path


@pytest.mark.parametrize("write", [write_imatrix, write_legacy_imatrix])
def test_importances_lower_the_error_of_important_columns(files: ModelFiles, write) -> None:
    imatrix = write(files.path.with_name("imatrix"), importances())
    plain = run(files, "Q4_K_S", out="plain.gguf")
    weighted = run(files, "Q4_K_S", out="weighted.gguf", imatrix=imatrix)
    for name in ("blk.2.attn_q.weight", "blk.0.ffn_up_exps.weight"):
        losses = []
        for path in (plain, weighted):
            one = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
            wanted = tensors()[name]
            read = gguf.quants.dequantize(one.data, one.tensor_type).reshape(wanted.shape)
            by = importances()[name]
            by = by[:, None] if wanted.ndim == 3 else by
            losses.append((by * np.square(read - wanted)).sum())
        assert losses[1] < 0.9 * losses[0], name


def test_importances_of_another_model_are_refused(files: ModelFiles) -> None:
    other = {f"other.{name}": rows for name, rows in importances().items()}
    imatrix = write_imatrix(files.path.with_name("imatrix"), other)
    with pytest.raises(ModelError, match="none of its names is a tensor"):
        run(files, "Q4_K_M", imatrix=imatrix)
    imatrix = write_imatrix(files.path.with_name("imatrix"), importances(512))
    with pytest.raises(ModelError, match="512 values, but the tensor has 256 columns"):
        run(files, "Q4_K_M", imatrix=imatrix)
    assert sorted(os.listdir(files.path.parent)) == ["imatrix", "in.gguf"]


@pytest.mark.parametrize("size", [0, 3, 4, 9, 60, 2000])
def test_a_truncated_importance_matrix_is_refused(files: ModelFiles, size: int) -> None:
    imatrix = write_legacy_imatrix(files.path.with_name("imatrix"), importances())
    imatrix.write_bytes(imatrix.read_bytes()[:size])
    with pytest.raises(ModelError, match="imatrix"):
        run(files, "Q4_K_M", imatrix=imatrix)


def test_importances_that_are_not_numbers_are_refused(files: ModelFiles) -> None:
    values = importances()
    values["blk.2.attn_q.weight"][0, 3] = np.nan
    imatrix = write_imatrix(files.path.with_name("imatrix"), values)
    with pytest.raises(ModelError, match=r"blk.2.attn_q.weight: .* must be finite"):
        run(files, "Q4_K_M", imatrix=imatrix)


def test_an_unknown_type_is_refused_with_the_known_ones(files: ModelFiles) -> None:
    with pytest.raises(ModelError, match=r"'Q9_K': must be one of .*Q4_K_M"):
        run(files, "Q9_K")
