"""Whisper over torch ops, as on a GPU, decodes windows like Whisper on the CPU: with the reference
ops, and with Triton's in the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_runtime_on_cpu import gpu_ops_on_cpu

import penstock.runtime.gpu.load as gpu_load
import penstock.runtime.load as load
from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.sources import files_at
from penstock.models.media.prepared import PreparedMedia
from penstock.models.whisper.folder import whisper_spec
from penstock.models.whisper.loader import load_whisper
from penstock.runtime.gpu.transcription import start_torch_transcription
from penstock.runtime.load import start_transcription
from penstock.runtime.transcription import TranscriptionRuntime
from tests.support.speech.whisper_folders import random_whisper
from tests.support.speech.window_decoding import decode, encode, start_runtime
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

SAID = 3 if INTERPRETED else 12
POSITIONS = 40 if INTERPRETED else 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_whisper(tmp_path_factory.mktemp("whisper"), max_source_positions=POSITIONS)


def settings_of(folder: Path, **options: Any) -> EngineSettings:
    return EngineSettings(
        model=str(folder), **{"dtype": "f32", "kv_cache_dtype": "f32", "threads": 2} | options
    )


def window(seed: int) -> PreparedMedia:
    features = np.random.default_rng(seed).normal(size=(80, 2 * POSITIONS)).astype(np.float32)
    return PreparedMedia.of("audio", features)


def test_tokens_are_those_of_the_native_kernels(folder: Path) -> None:
    settings = settings_of(folder)
    model = load_whisper(files_at(folder, "whisper"), settings.dtype)
    device = start_torch_transcription(model, settings, gpu_ops_on_cpu(settings))
    native = start_runtime(folder, dtype="f32")
    windows = [window(1), window(2), window(1)]
    tokens = whisper_spec(folder).tokens
    opening = tokens.opening("en", tokens.transcribe)
    prompts = [
        [*opening, tokens.no_timestamps],
        [tokens.previous, *b"earlier text", *opening],
        [*opening],
    ]
    for media in windows[:2]:
        rows, expected = encode(device, media), encode(native, media)
        np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    said = decode(device, windows, prompts, SAID)
    assert said == decode(native, windows, prompts, SAID)
    assert said[0] != said[1]


@pytest.mark.skipif(INTERPRETED, reason="independent of kernels")
def test_reference_kernels_serve_whisper(folder: Path) -> None:
    settings = settings_of(folder, kernel_backend="reference", max_num_seqs=2)
    runtime = start_transcription(files_at(folder, "whisper"), settings)
    media = window(3)
    encode(runtime, media)
    tokens = whisper_spec(folder).tokens
    prompt = [*tokens.opening("de", tokens.transcribe)]
    native = start_runtime(folder, dtype="f32")
    encode(native, media)
    assert decode(runtime, [media], [prompt], 4) == decode(native, [media], [prompt], 4)
    assert runtime.info.fingerprint != native.info.fingerprint
    runtime.close()


@pytest.mark.skipif(INTERPRETED, reason="independent of kernels")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2; for Whisper it must be 1"),
        ({"cpu_kv_cache_memory_mb": 8}, "cpu_kv_cache_memory_mb is 8; for Whisper it must be 0"),
        ({"deterministic": True}, "deterministic is True; for Whisper it must be False"),
        ({"quantization": "fp8", "dtype": "auto"}, "quantization is fp8; for Whisper it must be"),
        ({"kv_cache_dtype": "f8e4m3"}, "kv_cache_dtype is f8e4m3; for Whisper it must be auto"),
    ],
)
def test_settings_that_whisper_lacks_on_a_gpu_are_named(
    folder: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "choose_device", lambda settings: "cuda:0")
    settings = settings_of(folder, device="cuda", **options)
    with pytest.raises(ModelError, match=message):
        start_transcription(files_at(folder, "whisper"), settings)


@pytest.mark.skipif(INTERPRETED, reason="independent of kernels")
def test_whisper_runs_on_the_cpu_unless_a_gpu_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a machine with a GPU, where the device is auto."""
    monkeypatch.setattr(load, "choose_device", lambda settings: "cuda:0")
    monkeypatch.setattr(gpu_load, "torch_sees_gpu", lambda: False)
    runtime: TranscriptionRuntime = start_transcription(
        files_at(folder, "whisper"), settings_of(folder)
    )
    runtime.close()
    with pytest.raises(ModelError, match="device is cuda:0, but this build of torch finds no CUDA"):
        start_transcription(files_at(folder, "whisper"), settings_of(folder, device="cuda"))


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_triton_kernels_decode_alike_in_the_interpreter() -> None:
    passes_interpreted(__file__)
