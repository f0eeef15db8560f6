"""Qwen3-VL-Embedding through `/v1/embeddings`: all inputs are messages, which the chat template
renders after an instruction."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from penstock.base.errors import ModelError
from penstock.models.encoder.sentence_transformers import pooler_spec
from tests.support.checkpoints.small_qwen2_vl import TOKENS
from tests.support.checkpoints.small_qwen3_vl import (
    PIXELS,
    add_message_embedding,
    write_small_qwen3_vl,
)
from tests.support.media.small_processor import png
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import data_url, media_server

INSTRUCTION, OTHER = "Represent the input.", "Find the image."
PHOTO = png(70, 40)
IMAGE_PART = {"type": "image_url", "image_url": {"url": data_url(PHOTO)}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """(folder, model)."""
    folder = tmp_path_factory.mktemp("qwen3-vl-embedding")
    model = write_small_qwen3_vl(folder)
    add_message_embedding(folder, INSTRUCTION)
    return folder, model


@torch.no_grad()
def expected(saved: tuple[Path, Any], content: str, instruction: str = INSTRUCTION) -> np.ndarray:
    """Return the vector of transformers. `content`: has <|image_pad|> in the place of the photo."""
    folder, model = saved
    start, end, pad, _ = TOKENS
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=16, size=PIXELS, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    inputs: dict[str, Any] = {}
    if pad in content:
        inputs = dict(images(images=[np.array(Image.open(BytesIO(PHOTO)))], return_tensors="pt"))
        count = int(inputs["image_grid_thw"].prod()) // 4
        content = content.replace(pad, start + pad * count + end)
    text = (
        f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids])
    kinds = (ids == model.config.image_token_id).long()
    state = model.model(input_ids=ids, mm_token_type_ids=kinds, **inputs).last_hidden_state[0, -1]
    return np.asarray(state / state.norm())


async def test_every_input_has_the_vector_of_its_message(saved: tuple[Path, Any]) -> None:
    given: Any = [
        "two dogs",
        {"text": "two dogs"},
        {"image": data_url(PHOTO)},
        {"content": [IMAGE_PART, {"type": "text", "text": "two dogs"}]},
    ]
    async with media_server(saved[0]) as served:
        answer = await served.server.openai.embeddings.create(model=MODEL, input=given)
        assert await served.encoded() == 1
    vectors = [np.array(entry.embedding) for entry in answer.data]
    contents = ["two dogs", "two dogs", "<|image_pad|>", "<|image_pad|>two dogs"]
    for vector, content in zip(vectors, contents, strict=True):
        np.testing.assert_allclose(vector, expected(saved, content), atol=2e-4)


async def test_a_message_of_the_system_replaces_the_instruction(saved: tuple[Path, Any]) -> None:
    messages = [
        {"role": "system", "content": OTHER},
        {"role": "user", "content": [IMAGE_PART]},
    ]
    async with media_server(saved[0]) as served:
        answer = await served.server.http.post("/v1/embeddings", json={"messages": messages})
    vector = np.array(answer.json()["data"][0]["embedding"])
    np.testing.assert_allclose(vector, expected(saved, "<|image_pad|>", OTHER), atol=2e-4)


def test_messages_without_a_generation_prompt_are_refused(tmp_path: Path) -> None:
    add_message_embedding(tmp_path, INSTRUCTION)
    path = tmp_path / "sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processing_kwargs": {}}))
    with pytest.raises(ModelError, match="add_generation_prompt must be true"):
        pooler_spec(tmp_path)
