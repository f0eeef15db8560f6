"""Tuning a real small model: sizes are those of an engine, and the recommended settings fit."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest, NotFound
from penstock.config import EngineSettings, Environment
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.load import start_runtime
from penstock.runtime.weight_bytes import int16_bytes
from penstock.tune import job as jobs
from penstock.tune import tune as tuning
from penstock.tune.cpu_machine import CpuMachine
from penstock.tune.fitting import greatest
from penstock.tune.job import TuneJob, run_job
from penstock.tune.recommended_settings import serve_command
from penstock.tune.types import (
    RecommendedSettings,
    SpeedEstimate,
    TuneModelRequest,
    TuneModelResponse,
)
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.small_llama import write_small_llama

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_small_llama(tmp_path_factory.mktemp("models") / "small", width=128, ff=256)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


def tuned(
    model: Path, home: Path, available: int | None = None, **fields: Any
) -> TuneModelResponse:
    """Tune on the CPU of this machine, or on one with `available` bytes."""
    machine = CpuMachine(home)
    if available is not None:
        machine.available_bytes = available
    request = TuneModelRequest(str(model), **fields)
    settings = EngineSettings(model=str(model), threads=1)
    return tuning.tune(request, machine, files_at(model, "small"), settings)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of layers, for tests of sizes."""
    speed = SpeedEstimate(100.0, 10.0, 5.0, 20.0, 2, 512, 2, 2)
    monkeypatch.setattr("penstock.tune.candidates.estimate_speed", lambda *_: speed)


def test_every_type_has_the_memory_that_an_engine_plans(model: Path, tmp_path: Path) -> None:
    found = tuned(model, tmp_path, max_seq_len=256, max_batch_size=2)
    assert [one.isq for one in found.candidates] == [None, "int8", "int4"]
    assert [one.quality for one in found.candidates] == ["baseline", "near-lossless", "good"]
    assert found.candidates[0].isq_name == "F16"
    sizes = [one.estimated_size_bytes for one in found.candidates]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    for one in found.candidates:
        held = load_model(files_at(model, "small"), "auto", form=one.isq)
        stored = (model / "model.safetensors").stat().st_size
        grown = int16_bytes(held.weights)
        assert (grown > 0) == (one.isq is None), "as weights of 16-bit floats may be int16"
        assert one.estimated_size_bytes == stored + held.extra_bytes + grown
        assert one.fit_status == "fits" and one.context_is_model_max
        assert one.max_context_tokens == 4096
        assert one.memory.total_bytes == sum(
            (one.memory.weight_bytes, one.memory.cache_bytes, one.memory.other_bytes)
        )
        assert one.speed is not None and one.speed.measured_layers == one.speed.model_layers == 2
        rates = [getattr(one.speed, name) for name in SpeedEstimate.__struct_fields__[:4]]
        assert min(rates) > 0
    assert [one.recommended for one in found.candidates].count(True) == 1
    assert found.recommended_settings is not None
    chosen = next(one for one in found.candidates if one.recommended)
    assert found.recommended_isq == chosen.isq == found.recommended_settings.quantization
    assert any("estimates" in note for note in found.notes)


def test_the_recommended_settings_start_an_engine_of_that_size(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    found = tuned(model, tmp_path, max_seq_len=1000, max_batch_size=3, requested_isq="int8")
    chosen = found.recommended_settings
    assert chosen is not None and chosen.kv_cache_memory_mb is not None
    settings = EngineSettings(
        model=chosen.model,
        quantization="int8",
        max_model_len=chosen.max_model_len,
        max_num_seqs=chosen.max_num_seqs,
        kv_cache_memory_mb=chosen.kv_cache_memory_mb,
        threads=1,
        device="cpu",
    )
    runtime = start_runtime(
        files_at(model, "small"), settings, found.available_bytes, None, tmp_path
    )
    try:
        assert runtime.info.max_model_len == 1000
        assert runtime.info.cache_blocks * runtime.info.block_size >= 3 * 1000
        assert runtime.info.sizes.max_num_seqs == chosen.max_num_seqs == 32
    finally:
        runtime.close()


def test_the_greatest_context_is_the_last_that_fits(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    whole = tuned(model, tmp_path, max_seq_len=4096, max_batch_size=8)
    needed = whole.candidates[0].memory.total_bytes
    tight = tuned(model, tmp_path, needed - 2 * MIB, max_seq_len=4096, max_batch_size=8)
    (stored, *_) = tight.candidates
    assert stored.fit_status == "too-large" and 0 < stored.max_context_tokens < 4096
    assert not stored.context_is_model_max and stored.vram_usage_percent > 1
    shorter = tuned(
        model, tmp_path, needed - 2 * MIB, max_seq_len=stored.max_context_tokens, max_batch_size=8
    )
    assert shorter.candidates[0].fit_status == "fits"
    longer = tuned(
        model,
        tmp_path,
        needed - 2 * MIB,
        max_seq_len=stored.max_context_tokens + 16,
        max_batch_size=8,
    )
    assert longer.candidates[0].fit_status == "too-large"


def test_a_shorter_context_is_recommended_with_a_warning(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    sizes = {"max_seq_len": 4096, "max_batch_size": 8}
    memory = tuned(model, tmp_path, **sizes).candidates[0].memory
    too_little = memory.total_bytes - memory.cache_bytes * 3 // 4  # for a cache of int8 too
    found = tuned(model, tmp_path, too_little, **sizes, requested_isq="none")
    assert found.recommended_settings is not None
    served = found.recommended_settings.max_model_len
    assert served == found.candidates[0].max_context_tokens < 4096
    assert any(f"have {served}" in warning for warning in found.warnings)


def test_an_int8_cache_is_recommended_if_the_context_fits_only_so(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    sizes = {"max_seq_len": 4096, "max_batch_size": 8}
    needed = tuned(model, tmp_path, **sizes).candidates[0].memory.total_bytes
    found = tuned(model, tmp_path, needed - 3 * MIB, **sizes, requested_isq="none")
    assert found.recommended_settings is not None
    assert found.recommended_settings.kv_cache_dtype == "int8"
    assert found.recommended_settings.max_model_len == 4096


def test_a_model_that_does_not_fit_is_no_error(model: Path, tmp_path: Path) -> None:
    found = tuned(model, tmp_path, MIB)
    assert {one.fit_status for one in found.candidates} == {"too-large"}
    assert all(one.max_context_tokens == 0 and one.speed is None for one in found.candidates)
    assert found.recommended_command is None and found.recommended_settings is None
    assert found.recommended_isq is None and any("does not fit" in w for w in found.warnings)


def test_fewer_rows_are_recommended_if_the_default_does_not_fit(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    one = tuned(model, tmp_path, max_seq_len=2048, requested_isq="none")
    room = one.candidates[0].memory.total_bytes + 2 * MIB
    found = tuned(model, tmp_path, room, max_seq_len=2048, requested_isq="none")
    assert found.recommended_settings is not None
    rows = found.recommended_settings.max_num_seqs
    assert rows is not None and 1 <= rows < 32


def test_a_huge_batch_is_measured_with_few_sequences(model: Path, tmp_path: Path) -> None:
    found = tuned(model, tmp_path, max_batch_size=200, max_seq_len=64, requested_isq="none")
    (stored,) = found.candidates
    assert stored.speed is not None and stored.speed.batch_sequences == 64
    absurd = tuned(model, tmp_path, max_batch_size=1 << 40, requested_isq="none").candidates[0]
    assert absurd.fit_status == "too-large" and absurd.speed is None


def test_the_profiles_and_the_fixed_type_are_honoured(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    assert tuned(model, tmp_path, profile="quality").recommended_isq is None
    fixed = tuned(model, tmp_path, profile="quality", requested_isq="INT4")
    assert [one.isq for one in fixed.candidates] == ["int4"] and fixed.recommended_isq == "int4"
    with pytest.raises(InvalidRequest, match="int8"):
        tuned(model, tmp_path, requested_isq="q9")
    with pytest.raises(InvalidRequest, match=r"fp8.*GPU") as error:
        tuned(model, tmp_path, requested_isq="fp8")
    assert error.value.field == "requested_isq"


def test_dtypes_are_honoured_or_refused(model: Path, tmp_path: Path, unmeasured: None) -> None:
    wide = tuned(model, tmp_path, dtype="float32")
    assert [one.isq for one in wide.candidates] == [None]
    stored = tuned(model, tmp_path, requested_isq="none").candidates[0]
    assert wide.candidates[0].estimated_size_bytes > 1.9 * stored.estimated_size_bytes
    assert wide.recommended_command is not None and "--dtype f32" in wide.recommended_command
    assert any("F16" in note for note in tuned(model, tmp_path, dtype="bf16").notes)
    assert not any("dtype" in note for note in tuned(model, tmp_path, dtype="f16").notes)
    with pytest.raises(InvalidRequest, match="float32") as error:
        tuned(model, tmp_path, dtype="int3")
    assert error.value.field == "dtype"


def test_a_context_beyond_the_model_is_cut_with_a_warning(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    found = tuned(model, tmp_path, max_seq_len=1 << 20)
    assert found.max_seq_len == 4096 and any("4096" in warning for warning in found.warnings)


def test_images_of_a_text_model_have_no_effect(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    assert any("images" in note for note in tuned(model, tmp_path, max_num_images=2).notes)


def test_a_revision_that_serve_does_not_load_is_mentioned(
    model: Path, tmp_path: Path, unmeasured: None
) -> None:
    other = tuned(model, tmp_path, hf_revision="v2", requested_isq="none")
    assert any("hf_revision v2 has no effect" in warning for warning in other.warnings)
    own = tuned(model, tmp_path, hf_revision="main", requested_isq="none")
    assert not any("revision" in warning for warning in own.warnings)


def test_a_busy_machine_is_mentioned(
    model: Path, tmp_path: Path, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert any("load 99.0" in warning for warning in tuned(model, tmp_path).warnings)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not any("load" in warning for warning in tuned(model, tmp_path).warnings)


def test_models_without_answers_are_refused(tmp_path: Path) -> None:
    save_sentence_folder(tmp_path / "embedder", small_body("Bert"))
    with pytest.raises(InvalidRequest) as error:
        tuned(tmp_path / "embedder", tmp_path)
    assert error.value.code == "model_not_tunable"


def job_of(name: str, **fields: Any) -> TuneJob:
    origin = fields.pop("origin", "client")
    request = TuneModelRequest(name, **fields)
    return TuneJob(request, EngineSettings(model=name, threads=1), name, origin=origin)


def test_a_client_may_not_name_paths_or_secrets_of_the_machine(model: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path, tmp_path)
    with pytest.raises(NotFound) as unknown:
        run_job(job_of(str(model)), environment)
    assert unknown.value.code == "model_not_found"
    for source in ("env:HOME", "path:/etc/passwd"):
        with pytest.raises(InvalidRequest) as refused:
            run_job(job_of("who/what", token_source=source), environment)
        assert refused.value.field == "token_source"
    with pytest.raises(InvalidRequest) as revision:
        run_job(job_of("who/what", hf_revision="../../x"), environment)
    assert revision.value.field == "hf_revision"


def test_errors_for_clients_name_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_small_llama(tmp_path / "models" / "who--what")
    (folder / "config.json").write_text("{")
    environment = Environment(tmp_path, tmp_path)
    with pytest.raises(InvalidRequest) as error:
        run_job(job_of("who/what"), environment)
    assert str(tmp_path) not in error.value.message and "config.json" in error.value.message
    with pytest.raises(InvalidRequest, match=str(tmp_path)):
        run_job(job_of("who/what", origin="operator"), environment)


def test_the_memory_of_the_replaced_engine_counts(model: Path, tmp_path: Path) -> None:
    request = TuneModelRequest("small", cpu=True)
    settings = EngineSettings(model=str(model))
    environment = Environment(tmp_path, tmp_path)
    job = TuneJob(request, settings, "small", is_served=True, held_bytes=1 << 40)
    machine = jobs.machine_for(job, environment)
    assert machine.available_bytes - machine.free_bytes == 1 << 40


def test_the_command_quotes_names_and_leaves_defaults_out() -> None:
    settings = RecommendedSettings(model="my model.gguf", max_model_len=512, kv_cache_dtype="f32")
    assert serve_command(settings) == (
        "penstock serve 'my model.gguf' --kv-cache-dtype f32 --max-model-len 512"
    )


@pytest.mark.parametrize(("limit", "expected"), [(1, 0), (2, 2), (7, 7), (100, 100), (1000, 100)])
def test_greatest_finds_the_last_number_that_holds(limit: int, expected: int) -> None:
    assert greatest(2, 100, lambda number: number <= limit) == expected
