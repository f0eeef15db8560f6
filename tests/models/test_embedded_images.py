"""Embedding engines over images: the vectors of `transformers`, alone and in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_image_embedders import clip, clip_vision, expected_vector, siglip, siglip2
from test_qwen_vl_answers import CASES, IMAGE, request_of

from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings
from penstock.engine.embedding_core import EmbeddingCore
from penstock.engine.load import load_core
from penstock.engine.types import EmbedOutput, EmbedRequest, MediaItem, TokenRequest
from tests.support.checkpoints.embedding_checkpoints import add_sentence_files
from tests.support.vision_models import media_spec, picture, randomized, save, small_model

SIZES = ((37, 91), (64, 48), (30, 30))


def core_of(folder: Path, **options: Any) -> EmbeddingCore:
    settings = EngineSettings(model=str(folder), dtype="f32", threads=2, **options)
    core = load_core(settings)
    assert isinstance(core, EmbeddingCore)
    return core


def run(core: EmbeddingCore, *requests: EmbedRequest) -> dict[str, np.ndarray]:
    """Queue all requests and compute until none is left."""
    made: dict[str, list[EmbedOutput]] = {request.id: [] for request in requests}
    for request in requests:
        core.embed(request)
    while core.has_work:
        for output in core.step():
            assert output.finish != "error", output.error
            made[output.id].append(output)
    return {
        id: np.frombuffer(b"".join(one.vectors for one in outputs), np.float32).reshape(
            -1, core.info.embedding_width
        )
        for id, outputs in made.items()
    }


def image_request(id: str, folder: Path, images: Sequence[np.ndarray]) -> EmbedRequest:
    items = []
    for pixels in images:
        media = media_spec(folder).processor.image(pixels)
        items.append((MediaItem(media.digest(), media, 0, 1, ((0, 1),)),))
    return EmbedRequest(id, ((),) * len(images), media=tuple(items))


@pytest.fixture(scope="module", params=[clip, clip_vision, siglip, siglip2])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, image processor)."""
    model, images = request.param()
    model.config._attn_implementation = "eager"
    return save(tmp_path_factory.mktemp("model"), randomized(model), images), model, images


def test_images_get_the_vectors_of_transformers(saved: Any) -> None:
    folder, model, images = saved
    core = core_of(folder)
    pictures = [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]
    vectors = run(core, image_request("r", folder, pictures))["r"]
    for vector, pixels in zip(vectors, pictures, strict=True):
        wanted = expected_vector(model, images, pixels).ravel()
        np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), atol=1e-4)
    core.close()


def test_vectors_do_not_depend_on_other_images(saved: Any) -> None:
    folder, _, _ = saved
    core = core_of(folder)
    assert core.info.media_kinds == ("image",) and core.info.vocab_size == 0
    a, b, c = (picture(*size, seed=seed) for seed, size in enumerate(SIZES))
    together = run(core, image_request("x", folder, [a, b, a]), image_request("y", folder, [c, b]))
    assert core.gauges().media_items_encoded == 3
    assert np.array_equal(together["x"][0], together["x"][2])
    assert np.array_equal(together["x"][1], together["y"][1])
    fresh = core_of(folder)
    assert np.array_equal(run(fresh, image_request("z", folder, [c]))["z"][0], together["y"][0])
    assert not core.has_work and core._media is not None and not core._media.cache.held_bytes
    core.close()
    fresh.close()


def test_a_model_without_text_refuses_tokens(saved: Any) -> None:
    folder, _, _ = saved
    core = core_of(folder)
    for request in (EmbedRequest("r", ((1, 2),)), EmbedRequest("r", ((),))):
        with pytest.raises(InvalidRequest, match="embeds images and no text"):
            core.embed(request)
    core.close()


def embed_request(id: str, *requests: TokenRequest) -> EmbedRequest:
    return EmbedRequest(
        id,
        tuple(one.token_ids for one in requests),
        media=tuple(one.media for one in requests),
        rope_positions=tuple(one.rope_positions for one in requests),
    )


@torch.no_grad()
def expected_state(
    model: Any, processor: Any, case: Any, images: Sequence[Any], tokens: Sequence[int]
) -> np.ndarray:
    """Return the normalized state of the last token."""
    ids = torch.tensor([tokens])
    inputs: dict[str, Any] = {}
    if images:
        given = processor([list(images)], return_tensors="pt")
        inputs = {name: given[name] for name in case.inputs}
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    states = model.model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs)
    last = states.last_hidden_state[0, -1].numpy()
    return np.asarray(last / np.linalg.norm(last))


@pytest.mark.parametrize("name", ["qwen3-vl", "qwen2-vl"])
def test_texts_with_images_get_the_states_of_transformers(name: str, tmp_path: Path) -> None:
    """Like Qwen3-VL-Embedding: the state of the last token is the vector."""
    case = CASES[name]
    model, processor = small_model(case.name, case.text, case.vision, case.whole), case.processor()
    folder = save(tmp_path / "m", model, processor)
    add_sentence_files(folder, "lasttoken")
    core = core_of(folder, max_model_len=200)
    pictures = [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]
    groups = (pictures[:1], [], pictures[1:], pictures[:1])
    requests = [request_of(folder, group) for group in groups]
    vectors = run(core, embed_request("all", *requests))["all"]
    for vector, request, group in zip(vectors, requests, groups, strict=True):
        shown = [Image.fromarray(pixels) for pixels in group]
        wanted = expected_state(model, processor, case, shown, request.token_ids)
        np.testing.assert_allclose(vector, wanted, atol=1e-4)
    for index, request in enumerate(requests):
        alone = run(core, embed_request("one", request))["one"]
        assert np.array_equal(alone[0], vectors[index])
    core.close()
