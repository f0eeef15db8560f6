"""The Qwen-VL models answer prompts with images as `transformers` does: towers, placeholders, three
positions per token and DeepStack together, through the engine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hybrid_models import DELTA, EXPERTS
from PIL import Image
from safetensors.numpy import load_file, save_file

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import MediaItem, TokenDelta, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.media.processor import PlacedMedia
from penstock.runtime import start_runtime
from tests.support.vision_cases import Case
from tests.support.vision_models import media_spec, picture, save, small_model

IMAGE = 63
ANSWER_TOKENS = 8
SIZES = ((37, 91), (64, 48))
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
QWEN_TOKENS = {"image_token_id": IMAGE, "video_token_id": 62, "vision_start_token_id": 61}
QWEN = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 14, "out_hidden_size": 64}
QWEN3_5 = DELTA | {"num_hidden_layers": 4}
GRID = ("pixel_values", "image_grid_thw")


def qwen_images() -> Any:
    return transformers.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 28 * 28, "longest_edge": 100 * 100}, patch_size=14
    )


CASES = {
    "qwen2-vl": Case(
        "Qwen2VL",
        qwen_images,
        MROPE,
        {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14},
        QWEN_TOKENS,
        GRID,
    ),
    "qwen2.5-vl": Case("Qwen2_5_VL", qwen_images, MROPE, QWEN, QWEN_TOKENS, GRID),
    "qwen3-vl": Case(
        "Qwen3VL", qwen_images, MROPE, QWEN | {"deepstack_visual_indexes": [0]}, QWEN_TOKENS, GRID
    ),
    "qwen3.5": Case("Qwen3_5", qwen_images, QWEN3_5, QWEN, QWEN_TOKENS, GRID),
    "qwen3.5 moe": Case("Qwen3_5Moe", qwen_images, QWEN3_5 | EXPERTS, QWEN, QWEN_TOKENS, GRID),
}


def encode(text: str) -> Sequence[int]:
    """Return one token for any text; transformers does not look at separators."""
    return (3 + sum(text.encode()) % 50,)


def request_of(folder: Path, images: Sequence[np.ndarray]) -> TokenRequest:
    """Return a prompt with words around each of `images`."""
    processor = media_spec(folder).processor
    random = np.random.default_rng(0)
    tokens: list[int] = []
    placed = []
    for pixels in images:
        tokens += random.integers(3, 53, 5).tolist()
        media = processor.image(pixels)
        expansion = processor.expand(media, encode)
        placed.append(PlacedMedia(media, expansion, len(tokens)))
        own = list(expansion.token_ids)
        for first, count in expansion.runs:
            own[first : first + count] = [IMAGE] * count
        tokens += own
    tokens += random.integers(3, 53, 4).tolist()
    positions = processor.rope_positions(tokens, placed)
    items = [
        MediaItem(
            one.media.digest(),
            one.media,
            one.start,
            len(one.expansion.token_ids),
            one.expansion.runs,
            one.expansion.whole,
        )
        for one in placed
    ]
    return TokenRequest(
        "r",
        tuple(tokens),
        Sampling(temperature=0.0),
        0,
        ANSWER_TOKENS,
        top_logprobs=0,
        media=tuple(items),
        rope_positions=b"" if positions is None else positions.tobytes(),
    )


def answer(core: EngineCore, request: TokenRequest) -> list[TokenDelta]:
    core.submit(request)
    tokens: list[TokenDelta] = []
    while core.has_work:
        for output in core.step():
            assert output.finish != "error", output.error
            tokens += output.tokens
    return tokens


@torch.no_grad()
def expected(
    model: Any, processor: Any, case: Case, images: Sequence[np.ndarray], tokens: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return the tokens of the answer of transformers, with their log-probabilities."""
    ids = torch.tensor([tokens])
    given = processor([[Image.fromarray(one) for one in images]], return_tensors="pt")
    inputs = {name: given[name] for name in case.inputs}
    inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    model.generation_config.eos_token_id = None
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=ANSWER_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **inputs,
    )
    chosen = made.sequences[0, len(tokens) :]
    scores = torch.stack(made.logits)[:, 0].log_softmax(-1)
    return chosen.tolist(), scores[torch.arange(len(chosen)), chosen].tolist()


@pytest.mark.parametrize("name", CASES)
def test_answers_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, processor = small_model(case.name, case.text, case.vision, case.whole), case.processor()
    folder = save(tmp_path / "m", model, processor)
    images = [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]
    settings = EngineSettings(
        model=str(folder), dtype="f32", max_model_len=512, max_num_batched_tokens=64, threads=2
    )
    runtime = start_runtime(files_at(folder, "m"), settings)
    core = EngineCore.for_runtime(runtime, settings)
    request = request_of(folder, images)
    tokens = answer(core, request)
    core.close()
    wanted, logprobs = expected(model, processor, case, images, request.token_ids)
    assert [one.token_id for one in tokens] == wanted
    assert [one.logprob for one in tokens] == pytest.approx(logprobs, abs=2e-3)


def add_mtp_head(folder: Path) -> None:
    """Add an MTP head to a Qwen3.5: a copy of its attention layer, and a random projection."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    attention = re.compile(r"model\.language_model\.layers\.2\.(.*)")
    for name, values in list(tensors.items()):
        if found := attention.fullmatch(name):
            tensors[f"mtp.layers.0.{found[1]}"] = values.copy()
    norm = tensors["model.language_model.norm.weight"]
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{name}.weight"] = norm.copy()
    random = np.random.default_rng(0)
    tensors["mtp.fc.weight"] = random.normal(0, 0.1, (64, 128)).astype(np.float32)
    save_file(tensors, path, {"format": "pt"})


def test_an_mtp_head_changes_no_answer_to_images(tmp_path: Path) -> None:
    case = CASES["qwen3.5"]
    model = small_model(case.name, case.text, case.vision, case.whole)
    folder = save(tmp_path / "m", model, case.processor())
    add_mtp_head(folder)
    images = [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]
    answers = []
    for algorithm in ("none", "mtp"):
        settings = EngineSettings(
            model=str(folder),
            max_model_len=512,
            max_num_batched_tokens=64,
            threads=2,
            speculative_algorithm=algorithm,
        )
        core = EngineCore.for_runtime(start_runtime(files_at(folder, "m"), settings), settings)
        answers.append(answer(core, request_of(folder, images)))
        assert (core.gauges().mtp_draft_tokens > 0) == (algorithm == "mtp")
        core.close()
    assert answers[0] == answers[1]
