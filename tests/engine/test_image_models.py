"""Whole models answer prompts of text and images with the tokens and probabilities of
`transformers`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from media_engine import Answer, core_over, run
from PIL import Image

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.types import MediaItem, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.media.processor import MediaProcessor
from penstock.runtime import CpuRuntime, start_runtime
from tests.support.vision_cases import CASES, Case
from tests.support.vision_models import media_spec, picture, save, shown_among, small_model

IMAGE_TOKEN = 63
NEW_TOKENS = 6
TEXTS = ((3, 17, 5, 60, 9), (44, 31, 8), (12, 50, 7, 23))
SIZES = ((37, 91), (64, 48))


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, image processor, case)."""
    case = CASES[request.param]
    model, images = small_model(case.name, case.text, case.vision, case.whole), case.processor()
    return save(tmp_path_factory.mktemp("model"), model, images), model, images, case


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


def encode(text: str) -> list[int]:
    """Return a token per character, none of which is an image token."""
    return [4 + ord(letter) % 50 for letter in text]


def request_of(
    id: str, processor: MediaProcessor, pictures: list[np.ndarray], **options: Any
) -> TokenRequest:
    """Return a request for TEXTS with the pictures between them."""
    ids: list[int] = []
    media = []
    for number, text in enumerate(TEXTS[: len(pictures) + 1]):
        ids += text
        if number == len(pictures):
            break
        item = shown_among(processor, processor.image(pictures[number]), len(pictures))
        made = processor.expand(item, encode)
        media.append(
            MediaItem(item.digest(), item, len(ids), len(made.token_ids), made.runs, made.whole)
        )
        ids += made.token_ids
    greedy = Sampling(temperature=0.0)
    return TokenRequest(
        id, tuple(ids), greedy, 0, NEW_TOKENS, top_logprobs=1, media=tuple(media), **options
    )


@torch.no_grad()
def expected_answer(
    model: Any, images: Any, case: Case, ids: tuple[int, ...], pictures: list[np.ndarray]
) -> list[tuple[int, float]]:
    """Return the greedy tokens of `transformers` with their log-probabilities."""
    made = [Image.fromarray(pixels) for pixels in pictures]
    nested = not {"pixel_attention_mask", "batch_num_images"}.isdisjoint(case.inputs)
    given = images([made] if nested else made, return_tensors="pt") if made else {}
    inputs = {name: given[name] for name in case.inputs} if made else {}
    if case.name == "Gemma3":
        inputs["token_type_ids"] = torch.tensor([[int(token == IMAGE_TOKEN) for token in ids]])
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


def check(answer: Answer, expected: list[tuple[int, float]]) -> None:
    assert [token.token_id for token in answer.tokens] == [token for token, _ in expected]
    ours = [token.logprob for token in answer.tokens]
    np.testing.assert_allclose(ours, [share for _, share in expected], rtol=0, atol=1e-3)


def test_answers_are_those_of_transformers(saved: Any, runtime: CpuRuntime) -> None:
    folder, model, images, case = saved
    processor = media_spec(folder).processor
    pictures = [picture(*size, seed=3) for size in SIZES]
    chosen = {"none": [], "one": pictures[:1], "two": pictures}
    requests = [request_of(id, processor, shown) for id, shown in chosen.items()]
    answers = run(core_over(runtime, cache_bytes=64 << 20), requests)
    for request in requests:
        expected = expected_answer(model, images, case, request.token_ids, chosen[request.id])
        check(answers[request.id], expected)


def test_chunks_and_encoded_images_change_no_bit(saved: Any, runtime: CpuRuntime) -> None:
    processor = media_spec(saved[0]).processor
    pictures = [picture(*size, seed=4) for size in SIZES]
    requests = [request_of("a", processor, pictures), request_of("b", processor, pictures[:1])]
    alone = [run(core_over(runtime, 64 << 20), [one])[one.id].tokens for one in requests]
    core = core_over(runtime, 64 << 20, max_num_batched_tokens=64)
    for _ in range(2):  # the second time, all images are in the cache
        together = run(core, requests)
        assert [together[one.id].tokens for one in requests] == alone
