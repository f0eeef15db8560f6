"""Embeddings of images, and of texts with images, through `/v1/embeddings`."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers
from PIL import Image

from tests.support.checkpoints.embedding_checkpoints import add_sentence_files
from tests.support.checkpoints.small_llava import IMAGE_TOKENS, write_small_llava
from tests.support.media.small_processor import png
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server
from tests.support.text_towers import clip_tokenizer, text_vector, write_clip, write_siglip

RED, BLUE = png(40, 30), png(30, 40, (0, 0, 255))
IMAGE_PART = {"type": "image_url", "image_url": {"url": data_url(RED)}}
TEXT_PART = {"type": "text", "text": "a red square"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Return the folder of a small random CLIP, the model and its image processor."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=sizes | {"num_hidden_layers": 1, "vocab_size": 64},
        vision_config=sizes | {"num_hidden_layers": 3, "image_size": 28, "patch_size": 7},
        projection_dim=24,
    )
    torch.manual_seed(0)
    model = transformers.CLIPModel(config).float().eval()
    square = {"height": 28, "width": 28}
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=square)
    folder = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    images.save_pretrained(folder)
    return folder, model, images


@pytest.fixture(scope="module")
def llava_embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small LLaVA that embeds."""
    folder = write_small_llava(tmp_path_factory.mktemp("llava-embedder"))
    add_sentence_files(folder, pooling="lasttoken")
    return folder


async def embed(served: MediaServing, **body: Any) -> tuple[np.ndarray, int]:
    """Return the vectors and the number of prompt tokens."""
    answer = await served.server.http.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    vectors = np.array([entry["embedding"] for entry in found["data"]])
    return vectors, found["usage"]["prompt_tokens"]


async def test_images_have_the_vectors_of_transformers(clip: tuple[Path, Any, Any]) -> None:
    folder, model, images = clip
    async with media_server(folder) as served:
        given: Any = [
            {"image": data_url(RED)},
            {"image": base64.b64encode(BLUE).decode()},
            {"content": [IMAGE_PART]},
        ]
        answer = await served.server.openai.embeddings.create(model=MODEL, input=given)
        assert await served.encoded() == 2
    vectors = np.array([entry.embedding for entry in answer.data])
    for vector, image in zip(vectors, (RED, BLUE, RED), strict=True):
        pixels = images(images=Image.open(BytesIO(image)), return_tensors="pt")
        with torch.no_grad():
            found = model.get_image_features(**pixels)
        row = getattr(found, "pooler_output", found)[0]
        np.testing.assert_allclose(vector, row / row.norm(), atol=1e-4)


@pytest.mark.parametrize(
    ("fixture", "inputs"), [("clip", ["image"]), ("llava_embedder", ["text", "image"])]
)
async def test_the_model_card_names_what_is_embedded(
    request: pytest.FixtureRequest, fixture: str, inputs: list[str]
) -> None:
    made = request.getfixturevalue(fixture)
    async with media_server(made if isinstance(made, Path) else made[0]) as served:
        card: Any = await served.server.openai.models.retrieve(MODEL)
    assert card.architecture == {"input_modalities": inputs, "output_modalities": ["embeddings"]}


async def test_texts_and_images_have_the_cosines_of_transformers(tmp_path: Path) -> None:
    model = write_clip(tmp_path)
    images = transformers.CLIPImageProcessorPil.from_pretrained(tmp_path)
    texts = ("a cat", "two dogs, a cat!")
    given: Any = [texts[0], {"image": data_url(RED)}, {"text": texts[1]}, {"content": [IMAGE_PART]}]
    async with media_server(tmp_path) as served:
        answer = await served.server.openai.embeddings.create(model=MODEL, input=given)
        ids: Any = [clip_tokenizer()(text).input_ids for text in texts]
        of_ids = await served.server.openai.embeddings.create(model=MODEL, input=ids)
    found = np.array([entry.embedding for entry in answer.data])
    with torch.no_grad():
        pixels = images(images=Image.open(BytesIO(RED)), return_tensors="pt")
        image = torch.nn.functional.normalize(model.get_image_features(**pixels).pooler_output)[0]
    first, second = (text_vector(model, row) for row in ids)
    expected = torch.stack([first, image, second, image]).numpy()
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)
    assert [entry.embedding for entry in of_ids.data] == [found[0].tolist(), found[2].tolist()]
    assert answer.usage.prompt_tokens == sum(map(len, ids))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"content": [IMAGE_PART, TEXT_PART]}, "unsupported_value"),
        ({"content": [IMAGE_PART, IMAGE_PART]}, "unsupported_value"),
        ([64], "invalid_value"),
        ("a cat " * 40, "context_length_exceeded"),
    ],
)
async def test_inputs_that_are_neither_a_text_nor_an_image_are_refused(
    tmp_path: Path, given: Any, code: str
) -> None:
    write_siglip(tmp_path)
    async with media_server(tmp_path) as served:
        with pytest.raises(openai.BadRequestError) as caught:
            await served.server.openai.embeddings.create(model=MODEL, input=[given])
        cut = {"input": "a cat " * 40, "truncate_sequence": True}
        _, tokens = await embed(served, **cut)
    body: Any = caught.value.body
    assert (body["code"], body["param"]) == (code, "input")
    assert tokens == 60


async def test_a_model_that_embeds_images_refuses_texts(clip: tuple[Path, Any, Any]) -> None:
    folder, _, _ = clip
    async with media_server(folder) as served:
        for given in (["a text"], [[1, 2]], [{"content": [IMAGE_PART, TEXT_PART]}]):
            with pytest.raises(openai.BadRequestError) as caught:
                await served.server.openai.embeddings.create(model=MODEL, input=given)  # type: ignore[arg-type]
            body: Any = caught.value.body
            assert (body["code"], body["param"]) == ("unsupported_value", "input")


async def test_a_decoder_embeds_texts_with_images(llava_embedder: Path) -> None:
    async with media_server(llava_embedder) as served:
        both = {"content": [IMAGE_PART, TEXT_PART]}
        alone, tokens = await embed(served, input=[both])
        messages = [{"role": "user", "content": [IMAGE_PART, TEXT_PART]}]
        as_messages, _ = await embed(served, messages=messages)
        batch, _ = await embed(served, input=["a red square", both, {"image": data_url(BLUE)}])
        assert await served.encoded() == 2
    assert tokens > IMAGE_TOKENS
    assert np.array_equal(alone, as_messages) and np.array_equal(batch[1], alone[0])
    assert not np.allclose(batch[0], batch[1]) and not np.allclose(batch[1], batch[2])


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"input": [{"image": data_url(b"no image")}]}, "invalid_image", "input[0].image"),
        ({"input": ["a", {"image": "%%"}]}, "invalid_value", "input[1].image"),
        ({"input": [{}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"text": "a"}, ""]}, "invalid_value", "input[1]"),
        ({"input": "a", "messages": []}, "invalid_value", "messages"),
        ({}, "missing_required_parameter", "input"),
        (
            {"input": [{"content": [{"type": "video_url", "video_url": "https://a.b/c"}]}]},
            "unsupported_value",
            "input[0].content[0].video_url",
        ),
    ],
)
async def test_inputs_that_cannot_be_embedded_are_named(
    llava_embedder: Path, body: dict[str, Any], code: str, field: str
) -> None:
    async with media_server(llava_embedder) as served:
        answer = await served.server.http.post("/v1/embeddings", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, field)
