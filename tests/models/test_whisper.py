"""Whisper: encoder, decoder and rules give the results of transformers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.media.prepared import PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.whisper.folder import is_whisper, whisper_spec
from penstock.models.whisper.loader import load_whisper
from penstock.models.whisper.rules import FORBIDDEN, TranscriptRules
from penstock.models.whisper.tower import WhisperTower
from penstock.runtime.transcription import TranscriptionRuntime
from tests.support.speech.whisper_folders import random_whisper
from tests.support.speech.window_decoding import decode, encode, start_runtime
from tests.support.vision_models import drained, native_ops

SAID = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> WhisperForConditionalGeneration:
    return WhisperForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def runtime(folder: Path) -> TranscriptionRuntime:
    return start_runtime(folder)


def window(seed: int, mels: int = 80, frames: int = 3000) -> PreparedMedia:
    features = np.random.default_rng(seed).normal(size=(mels, frames)).astype(np.float32)
    return PreparedMedia.of("audio", features)


def greedy(
    model: WhisperForConditionalGeneration, media: PreparedMedia, prompt: list[int], folder: Path
) -> list[int]:
    """Return the first SAID tokens of transformers' model and its logits processors."""
    tokens = whisper_spec(folder).tokens
    stamps = WhisperTimeStampLogitsProcessor(
        SimpleNamespace(
            no_timestamps_token_id=tokens.no_timestamps,
            eos_token_id=tokens.end,
            max_initial_timestamp_index=50,
            _detect_timestamp_from_logprob=True,
        ),
        begin_index=len(prompt),
    )
    said = list(prompt)
    features = torch.from_numpy(media.array().copy())[None]
    with torch.inference_mode():
        encoded = model.model.encoder(features)
        for _ in range(SAID):
            ids = torch.tensor([said])
            scores = model(encoder_outputs=encoded, decoder_input_ids=ids).logits[:, -1]
            scores[:, [*tokens.suppressed, tokens.no_timestamps]] = -torch.inf
            if len(said) == len(prompt):
                scores[:, list(tokens.suppressed_first)] = -torch.inf
            if prompt[-1] != tokens.no_timestamps:
                scores = stamps(ids, scores)
            said.append(int(scores.argmax()))
    return said[len(prompt) :]


def test_encoder_gives_the_states_of_transformers(
    runtime: TranscriptionRuntime, reference: WhisperForConditionalGeneration
) -> None:
    media = window(0)
    rows = encode(runtime, media)
    with torch.inference_mode():
        features = torch.from_numpy(media.array().copy())[None]
        expected = reference.model.encoder(features).last_hidden_state[0].numpy()
    assert np.abs(rows - expected).max() <= 1e-4 * np.abs(expected).max()


def tower_rows(
    folder: Path, dtype: Literal["auto", "f32"], form: str | None, budget: PieceBudget
) -> np.ndarray[Any, Any]:
    """Return the rows of a window, encoded with the native kernels."""
    model = load_whisper(ModelFiles("whisper", "folder", folder), dtype, form)
    ops = native_ops()
    tower = WhisperTower(model.spec, model.weights.tensors, ops)
    encoded, _ = drained(tower.encode(ops, window(0), budget))
    return np.asarray(encoded.rows).reshape(-1, model.spec.width)


def test_encoder_with_coarse_weights_is_near_float32_in_pieces_of_any_size(folder: Path) -> None:
    exact = tower_rows(folder, "f32", None, PieceBudget())
    coarse = tower_rows(folder, "auto", "int8", PieceBudget())
    error = np.linalg.norm(coarse - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < error.max() < 0.03
    in_pieces = tower_rows(folder, "auto", "int8", PieceBudget(operations=1e6))
    np.testing.assert_array_equal(in_pieces, coarse)


def test_greedy_tokens_of_a_batch_are_those_of_transformers(
    folder: Path, runtime: TranscriptionRuntime, reference: WhisperForConditionalGeneration
) -> None:
    tokens = whisper_spec(folder).tokens
    windows = [window(seed) for seed in range(3)]
    for one in windows:
        encode(runtime, one)
    before = [tokens.previous, *b"earlier text"]
    prompts = [
        [*tokens.opening("en", tokens.transcribe), tokens.no_timestamps],
        [*tokens.opening("de", tokens.translate)],
        [*before, *tokens.opening("fr", tokens.transcribe)],
    ]
    said = decode(runtime, windows, prompts, SAID)
    for media, prompt, own in zip(windows, prompts, said, strict=True):
        assert own == greedy(reference, media, prompt, folder)


def test_plan_gives_the_bits_of_the_eager_calls(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several rows in one step, of other lengths than the windows, and decode steps."""
    runtime = start_runtime(folder)
    backend: Any = runtime._backend
    by_plan, compared = backend.logits, []

    def both(*inputs: Any) -> Any:
        expected = backend.eager_logits(*inputs)
        logits = by_plan(*inputs)
        np.testing.assert_array_equal(logits, expected)
        compared.append(len(logits))
        return logits

    monkeypatch.setattr(backend, "logits", both)
    windows = [window(seed) for seed in range(2)]
    for media in windows:
        encode(runtime, media)
    tokens = whisper_spec(folder).tokens
    opening = tokens.opening("en", tokens.transcribe)
    prompts = [[tokens.previous, *b"text" * 20, *opening], [*opening]]
    decode(runtime, windows, prompts, 4)
    assert compared == [2] * 4


def test_rows_with_the_same_window_share_its_keys_and_values(
    folder: Path, runtime: TranscriptionRuntime
) -> None:
    tokens = whisper_spec(folder).tokens
    one, other = window(5), window(6)
    for media in (one, other):
        encode(runtime, media)
    prompt = [*tokens.opening("en", tokens.transcribe), tokens.no_timestamps]
    alone = decode(runtime, [one], [prompt], SAID)
    together = decode(runtime, [other, one, one], [prompt] * 3, SAID)
    assert together[1:] == alone * 2
    assert together[0] != together[1]


def test_more_windows_than_rows_replace_each_other(folder: Path) -> None:
    tokens = whisper_spec(folder).tokens
    runtime = start_runtime(folder, max_num_seqs=2)
    prompt = [*tokens.opening("en", tokens.transcribe), tokens.no_timestamps]
    windows = [window(seed) for seed in range(4)]
    for media in windows:
        encode(runtime, media)
    once = [decode(runtime, [media], [prompt], SAID)[0] for media in windows]
    again = [decode(runtime, [media], [prompt], SAID)[0] for media in reversed(windows)]
    assert again[::-1] == once


@pytest.mark.parametrize("seed", range(20))
def test_rules_are_those_of_transformers(folder: Path, seed: int) -> None:
    tokens = whisper_spec(folder).tokens
    source = np.random.default_rng(seed)
    opening = [*tokens.opening("en", tokens.transcribe)]
    said: list[int] = []
    for _ in range(source.integers(0, 6)):
        stamp = tokens.first_timestamp + int(source.integers(0, 40)) + 40 * len(said)
        said.append(stamp if source.random() < 0.5 else int(source.integers(0, 250)))
    known = np.array(opening + said, np.int32)
    logits = (4 * source.normal(size=whisper_spec(folder).vocab_size)).astype(np.float32)
    scores = torch.from_numpy(logits.copy())[None]
    scores[:, [*tokens.suppressed, tokens.no_timestamps]] = -torch.inf
    if not said:
        scores[:, list(tokens.suppressed_first)] = -torch.inf
    stamps = WhisperTimeStampLogitsProcessor(
        SimpleNamespace(
            no_timestamps_token_id=tokens.no_timestamps,
            eos_token_id=tokens.end,
            max_initial_timestamp_index=50,
            _detect_timestamp_from_logprob=True,
        ),
        begin_index=len(opening),
    )
    expected = stamps(torch.from_numpy(known.astype(np.int64))[None], scores)[0].numpy()
    TranscriptRules(tokens).apply(logits, known, len(opening))
    allowed = logits > FORBIDDEN
    np.testing.assert_array_equal(allowed, np.isfinite(expected))
    np.testing.assert_array_equal(logits[allowed], expected[allowed])


def test_prompt_without_complete_opening_has_no_rules(folder: Path) -> None:
    tokens = whisper_spec(folder).tokens
    rules = TranscriptRules(tokens)
    assert rules.transcript_start(np.array([tokens.start], np.int32)) is None
    assert rules.transcript_start(np.array([tokens.start, tokens.no_speech], np.int32)) is None
    opening = np.array([1, tokens.start, *tokens.opening("en", tokens.transcribe)[1:]], np.int32)
    assert rules.transcript_start(opening) == 4


def test_english_only_model_starts_with_one_token(tmp_path: Path) -> None:
    random_whisper(tmp_path, multilingual=False)
    tokens = whisper_spec(tmp_path).tokens
    assert tokens.languages == {}
    assert tokens.opening(None, tokens.transcribe) == (tokens.start,)


def test_model_kind_is_told_from_the_folder(folder: Path, tmp_path: Path) -> None:
    assert is_whisper(ModelFiles("whisper", "folder", folder))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    assert not is_whisper(ModelFiles("llama", "folder", tmp_path))


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    random_whisper(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"decoder_layers": 2', '"decoder_layers": 3'))
    with pytest.raises(ModelError, match=r"model\.decoder\.layers\.2\..* is missing"):
        load_whisper(ModelFiles("whisper", "folder", tmp_path), "auto")
