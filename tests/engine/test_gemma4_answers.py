"""Whole Gemma 4 models answer prompts of text, images and recordings with the probabilities of
`transformers`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from media_engine import Answer, core_over, run
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.types import MediaItem, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.media.prepared import PreparedMedia, Sound
from penstock.models.media.tiles import TileLayout
from penstock.runtime import CpuRuntime, start_runtime
from tests.support.speech.audio_models import RATE, sound
from tests.support.vision_models import TEXT, media_spec, picture, randomized

IMAGE, AUDIO, VIDEO = 63, 62, 61
NEW_TOKENS, SAMPLES = 4, 9_000
TEXTS = ((3, 17, 5, 60, 9), (44, 31, 8), (12, 50, 7, 23))
IMAGES = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70}
WINDOW = 80
"""More than the tokens of an image, and fewer than those of a prompt with two."""
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 600,
}
HEARING = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [128, 8],
    "output_proj_dims": 24,
}
EMBEDDER = {"patch_size": 4, "mm_embed_dim": 40, "mm_posemb_size": 300, "output_proj_dims": 40}
LAYERS = {
    "num_hidden_layers": 4,
    "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
    "final_logit_softcapping": 5.0,
}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}


@dataclass(frozen=True)
class Case:
    """A small model. `parts`: the towers' configs."""

    name: str
    text: dict[str, Any]
    parts: dict[str, Any] = field(default_factory=dict)


CASES = {
    "e2b": Case(
        "Gemma4",
        {
            "hidden_size_per_layer_input": 32,
            "vocab_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
        },
        {"vision_config": VISION, "audio_config": HEARING},
    ),
    "31b": Case(
        "Gemma4",
        KEYS_AS_VALUES
        | {"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
        {"vision_config": VISION},
    ),
    "unified": Case("Gemma4Unified", KEYS_AS_VALUES, {"vision_config": EMBEDDER}),
}


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, case)."""
    case = CASES[request.param]
    config = getattr(transformers, f"{case.name}Config")(
        text_config=TEXT | LAYERS | case.text,
        image_token_id=IMAGE,
        audio_token_id=AUDIO,
        video_token_id=VIDEO,
        **case.parts,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = randomized(getattr(transformers, f"{case.name}ForConditionalGeneration")(config))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.normal_(0.8, 0.1)
            elif name.endswith(("_min", "_max")):
                buffer.fill_(-3.0 if name.endswith("_min") else 3.0)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    keys = IMAGES | {"do_normalize": False}
    for name in ("preprocessor_config", "video_preprocessor_config"):
        (folder / f"{name}.json").write_text(json.dumps(keys))
    return folder, model, case


@pytest.fixture(scope="module")
def runtime(saved: Any) -> Iterator[CpuRuntime]:
    settings = EngineSettings(
        model=str(saved[0]),
        dtype="f32",
        max_model_len=512,
        max_num_seqs=6,
        max_num_batched_tokens=512,
        threads=2,
    )
    started = start_runtime(files_at(saved[0], "small"), settings, None)
    assert isinstance(started, CpuRuntime)
    yield started
    started.close()


def request_of(id: str, folder: Path, items: list[PreparedMedia]) -> TokenRequest:
    """Return a request for TEXTS with the items between them."""
    processor = media_spec(folder).processor
    ids: list[int] = []
    media = []
    for number, text in enumerate(TEXTS[: len(items) + 1]):
        ids += text
        if number == len(items):
            break
        item = items[number]
        made = processor.expand(item, lambda text: [4 + ord(letter) % 50 for letter in text])
        media.append(
            MediaItem(item.digest(), item, len(ids), len(made.token_ids), made.runs, made.whole)
        )
        ids += made.token_ids
    greedy = Sampling(temperature=0.0)
    return TokenRequest(id, tuple(ids), greedy, 0, NEW_TOKENS, top_logprobs=1, media=tuple(media))


@torch.no_grad()
def expected_logprobs(
    model: Any, request: TokenRequest, tokens: list[int], inputs: dict[str, torch.Tensor]
) -> tuple[list[int], list[float]]:
    """Return the best token at each place of the answer `tokens`, and their log-probabilities."""
    ids = torch.tensor([[*request.token_ids, *tokens[:-1]]])
    kinds = (ids == IMAGE).long()
    logits = model(input_ids=ids, mm_token_type_ids=kinds, **inputs).logits[0]
    shares = logits[len(request.token_ids) - 1 :].log_softmax(-1)
    own = shares.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return shares.argmax(-1).tolist(), own.tolist()


def image_inputs(case: Case, folder: Path, pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """Return the inputs of transformers' model for some images."""
    if not pictures:
        return {}
    if case.name == "Gemma4":
        processor = Gemma4ImageProcessorPil(**IMAGES)
        given = processor(images=pictures, return_tensors="pt", input_data_format="channels_last")
        return {name: given[name] for name in ("pixel_values", "image_position_ids")}
    (shown,) = pictures
    media = media_spec(folder).processor.image(shown)
    ((rows, columns),) = TileLayout.of(media).grids
    places = torch.tensor([[[x, y] for y in range(rows) for x in range(columns)]])
    pixels = torch.tensor(media.array() / np.float32(255))[None]
    return {"pixel_values": pixels, "image_position_ids": places}


def check(model: Any, request: TokenRequest, answer: Answer, inputs: dict[str, Any]) -> None:
    """Compare the answer up to the first placeholder of media, for which transformers would want
    rows."""
    text = list(itertools.takewhile(lambda token: token.token_id < VIDEO, answer.tokens))
    compared = answer.tokens[: len(text) + 1]
    tokens = [token.token_id for token in compared]
    best, shares = expected_logprobs(model, request, tokens, inputs)
    assert tokens == best
    ours = [token.logprob for token in compared]
    np.testing.assert_allclose(ours, shares, rtol=0, atol=1e-3)


def test_answers_to_images_are_those_of_transformers(saved: Any, runtime: CpuRuntime) -> None:
    folder, model, case = saved
    pictures = [picture(37, 91, seed=3), picture(64, 48, seed=3)]
    chosen = {"none": [], "one": pictures[:1]}
    if case.name == "Gemma4":
        chosen["two"] = pictures
    processor = media_spec(folder).processor
    requests = [
        request_of(id, folder, [processor.image(one) for one in shown])
        for id, shown in chosen.items()
    ]
    answers = run(core_over(runtime, cache_bytes=64 << 20), requests)
    for request in requests:
        inputs = image_inputs(case, folder, chosen[request.id])
        check(model, request, answers[request.id], inputs)


def test_answers_to_recordings_are_those_of_transformers(saved: Any, runtime: CpuRuntime) -> None:
    folder, model, case = saved
    if "audio_config" not in case.parts:
        pytest.skip("this model does not hear")
    wave = sound(SAMPLES)
    processor = media_spec(folder).processor
    request = request_of("a", folder, [processor.audio(Sound(wave, RATE))])
    answer = run(core_over(runtime, cache_bytes=64 << 20), [request])["a"]
    made = Gemma4AudioFeatureExtractor()([wave], return_tensors="pt")
    inputs = {name: made[name] for name in ("input_features", "input_features_mask")}
    check(model, request, answer, inputs)
