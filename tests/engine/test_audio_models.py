"""Whole models answer prompts of text and recordings with the tokens and probabilities of
`transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from media_engine import core_over, run
from torch.nn.functional import pad

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.types import MediaItem, TokenRequest
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.hub.sources import files_at
from penstock.models.media.prepared import Sound
from penstock.runtime import CpuRuntime, start_runtime
from tests.support.speech.audio_models import (
    CASES,
    OMNI,
    RATE,
    save,
    save_thinker,
    small_model,
    small_thinker,
    sound,
)

NEW_TOKENS = 6
TEXTS = ((3, 17, 5, 60, 9), (44, 31, 8), (12, 50, 7, 23))
LENGTHS = (20_011, 60_001)
CACHE_BYTES = 64 << 20


@pytest.fixture(scope="module", params=[*CASES, "qwen3-omni"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, case)."""
    if request.param == "qwen3-omni":
        thinker = small_thinker()
        return save_thinker(tmp_path_factory.mktemp("model"), thinker), thinker, OMNI
    case = CASES[request.param]
    model = small_model(case)
    return save(tmp_path_factory.mktemp("model"), model), model, case


@pytest.fixture(scope="module")
def runtime(saved: Any) -> Iterator[CpuRuntime]:
    settings = EngineSettings(
        model=str(saved[0]),
        dtype="f32",
        max_model_len=2048,
        max_num_seqs=6,
        max_num_batched_tokens=2048,
        threads=2,
    )
    started = start_runtime(files_at(saved[0], "small"), settings, None)
    assert isinstance(started, CpuRuntime)
    yield started
    started.close()


def request_of(id: str, folder: Any, lengths: tuple[int, ...]) -> TokenRequest:
    """Return a request for TEXTS with recordings between them."""
    spec = media_spec_of_folder(folder)
    assert spec is not None
    ids: list[int] = []
    media = []
    for text, samples in zip(TEXTS, (*lengths, 0), strict=False):
        ids += text
        if not samples:
            break
        item = spec.processor.audio(Sound(sound(samples), RATE))
        made = spec.processor.expand(item, lambda text: [])
        size = len(made.token_ids)
        media.append(MediaItem(item.digest(), item, len(ids), size, made.runs))
        ids += made.token_ids
    greedy = Sampling(temperature=0.0)
    return TokenRequest(id, tuple(ids), greedy, 0, NEW_TOKENS, top_logprobs=1, media=tuple(media))


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the inputs of several recordings, of which the shorter ones end with zeros."""
    longest = max(part.shape[-1] for part in parts)
    return torch.cat([pad(part, (0, longest - part.shape[-1])) for part in parts])


@torch.no_grad()
def expected_answer(
    model: Any, case: Any, ids: tuple[int, ...], lengths: tuple[int, ...]
) -> list[tuple[int, float]]:
    """Return the greedy tokens of `transformers` with their log-probabilities."""
    heard = [case.hears(sound(samples)).inputs for samples in lengths]
    inputs = {key: joined([one[key] for one in heard]) for key in heard[0]} if heard else {}
    model.generation_config.eos_token_id = None  # the engine's request has no stop tokens either
    found = model.generate(
        input_ids=torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        **inputs,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = found.sequences[0, len(ids) :].tolist()
    shares = [logits[0].log_softmax(-1) for logits in found.logits]
    return [(token, float(share[token])) for token, share in zip(tokens, shares, strict=True)]


def test_answers_are_those_of_transformers(saved: Any, runtime: CpuRuntime) -> None:
    folder, model, case = saved
    chosen: dict[str, tuple[int, ...]] = {"none": (), "one": LENGTHS[:1], "two": LENGTHS}
    requests = [request_of(id, folder, lengths) for id, lengths in chosen.items()]
    answers = run(core_over(runtime, cache_bytes=CACHE_BYTES), requests)
    for request in requests:
        expected = expected_answer(model, case, request.token_ids, chosen[request.id])
        answer = answers[request.id]
        assert [token.token_id for token in answer.tokens] == [token for token, _ in expected]
        shares = [token.logprob for token in answer.tokens]
        np.testing.assert_allclose(shares, [share for _, share in expected], rtol=0, atol=1e-3)


def test_chunks_and_encoded_recordings_change_no_bit(saved: Any, runtime: CpuRuntime) -> None:
    requests = [request_of("a", saved[0], LENGTHS), request_of("b", saved[0], LENGTHS[:1])]
    alone = [run(core_over(runtime, CACHE_BYTES), [one])[one.id].tokens for one in requests]
    core = core_over(runtime, CACHE_BYTES, max_num_batched_tokens=64)
    for _ in range(2):  # the second time, all recordings are in the cache
        together = run(core, requests)
        assert [together[one.id].tokens for one in requests] == alone
