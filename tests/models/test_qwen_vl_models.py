"""Whole Qwen-VL models answer prompts with images and videos as `transformers` does, and with the
same bits alone, in chunks, in batches and from the prefix cache."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf_export import export_gguf
from mmproj_export import Conversion, convert_qwen2, convert_qwen3, export
from test_text_backbones import CASES, SMALL

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.types import MediaItem, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.loader.media import media_spec
from penstock.models.loader.model_loader import load_model
from penstock.models.media.prepared import Frames
from penstock.models.media.processor import PlacedMedia
from penstock.runtime import CpuRuntime, start_runtime
from tests.engine.media_engine import Answer, core_over, run
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.vision_models import picture, small_model

IMAGE, VIDEO, START, END = 63, 62, 61, 60
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
TEXTS = {
    "<|image_pad|>": IMAGE,
    "<|video_pad|>": VIDEO,
    "<|vision_start|>": START,
    "<|vision_end|>": END,
}
MODELS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe")
VISION = {
    "Qwen2VL": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2},
    "Qwen2_5_VL": {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
                   "out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1],
                   "tokens_per_second": 2},
    "Qwen3VL": {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
                "out_hidden_size": 64, "num_position_embeddings": 36,
                "deepstack_visual_indexes": [0, 1]},
}  # fmt: skip
VISION["Qwen3VLMoe"] = VISION["Qwen3VL"]
SIZES = {"size": {"shortest_edge": 784, "longest_edge": 20_000}}
VIDEO_SIZES = {"size": {"shortest_edge": 784, "longest_edge": 30_000}}
BLOCK, CONTEXT, NEW = 16, 320, 8

Part = list[int] | np.ndarray | Frames


@dataclass(frozen=True)
class Prompt:
    """A prompt with media, for the engine and for transformers."""

    token_ids: list[int]
    items: list[PlacedMedia]
    rope: bytes

    def request(self, id: str, max_tokens: int = NEW) -> TokenRequest:
        media = tuple(
            MediaItem(item.media.digest(), item.media, item.start,
                      len(item.expansion.token_ids), item.expansion.runs)
            for item in self.items
        )  # fmt: skip
        return TokenRequest(
            id,
            tuple(self.token_ids),
            Sampling(temperature=0.0),
            1,
            max_tokens,
            top_logprobs=1,
            media=media,
            rope_positions=self.rope,
        )


def encode(text: str) -> list[int]:
    """Return the token of a special text, or a token per character."""
    return [TEXTS[text]] if text in TEXTS else [3 + code % 50 for code in text.encode()]


def prompt_of(processor: Any, parts: list[Part]) -> Prompt:
    """Return the prompt of `parts` after a text of a block."""
    token_ids = list(range(5, 5 + BLOCK))
    items: list[PlacedMedia] = []
    for part in parts:
        if isinstance(part, list):
            token_ids += part
            continue
        is_video = isinstance(part, Frames)
        media = processor.video(part) if is_video else processor.image(part)
        expansion = processor.expand(media, encode)
        items.append(PlacedMedia(media, expansion, len(token_ids)))
        token_ids += expansion.token_ids
    positions = processor.rope_positions(token_ids, items)
    return Prompt(token_ids, items, b"" if positions is None else positions.tobytes())


def clip(count: int, height: int, width: int) -> Frames:
    pixels = np.stack([picture(height, width, seed) for seed in range(count)])
    return Frames(pixels, tuple(index / 2 for index in range(count)), count / 2)


PROMPTS: dict[str, list[Part]] = {
    "image": [[5, 9, START], picture(60, 90), [END, 17, 4]],
    "images and text": [
        [START], picture(40, 40, 1), [END, 8, 30, 2, START], picture(90, 33, 2), [END, 11],
    ],
    "video": [[7, START], clip(5, 60, 70), [END, 21, 6]],
    "video and image": [[START], picture(64, 48, 3), [END, 12, START], clip(4, 40, 64), [END]],
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model of transformers, media side, engine runtime)."""
    name = request.param
    text, _, whole = CASES[name]
    folder = tmp_path_factory.mktemp(name)
    patch = 16 if name.startswith("Qwen3") else 14
    sides = {"patch_size": patch}
    extra = {"use_cache": False}
    reference = small_model(name, SMALL | text | extra, VISION[name] | sides, whole | TOKENS)
    with torch.no_grad():  # a special token is never more likely than token 3
        reference.lm_head.weight[END:] = reference.lm_head.weight[3]
    reference.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(SIZES))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEO_SIZES))
    return reference, media_spec(files_at(folder, name)), started(folder)


def started(folder: Path) -> CpuRuntime:
    settings = EngineSettings(
        model=str(folder),
        dtype="f32",
        max_model_len=CONTEXT,
        max_num_seqs=6,
        max_num_batched_tokens=CONTEXT,
        block_size=BLOCK,
        threads=2,
    )
    return start_runtime(files_at(folder, "model"), settings)


@torch.no_grad()
def expected(reference: Any, spec: Any, prompt: Prompt) -> tuple[list[int], list[float]]:
    """Return the greedy tokens of transformers and their log-probabilities."""
    facts: dict[str, Any] = {}
    grid = spec.towers[0].grid
    for kind, pixels, sizes in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        media = [item.media for item in prompt.items if item.media.kind == kind]
        if media:
            groups = [g for m in media for g in np.split(m.array(), m.layout[0])]
            facts[pixels] = torch.tensor(np.concatenate([grid.patches(group) for group in groups]))
            facts[sizes] = torch.tensor([m.layout[:3] for m in media])
        if media and kind == "video" and "Qwen2_5" in type(reference).__name__:
            facts["second_per_grid_ts"] = torch.tensor([m.layout[3] / 1e6 for m in media])
    ids, tokens, logprobs = torch.tensor([prompt.token_ids]), [], []
    for _ in range(NEW):
        kinds = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
        kinds[:, len(prompt.token_ids) :] = 0
        logits = reference(input_ids=ids, mm_token_type_ids=kinds, **facts).logits[0, -1]
        reference.model.rope_deltas = None
        tokens.append(int(logits.argmax()))
        logprobs.append(float(logits.log_softmax(-1).max()))
        ids = torch.cat([ids, torch.tensor([[tokens[-1]]])], dim=1)
    return tokens, logprobs


def tokens_of(answer: Answer) -> list[int]:
    return [token.token_id for token in answer.tokens]


@pytest.mark.parametrize("name", PROMPTS)
def test_answers_equal_those_of_transformers(model: Any, name: str) -> None:
    reference, spec, runtime = model
    prompt = prompt_of(spec.processor, PROMPTS[name])
    answer = run(core_over(runtime), [prompt.request("a")])["a"]
    tokens, logprobs = expected(reference, spec, prompt)
    assert answer.error is None
    assert tokens_of(answer) == tokens
    np.testing.assert_allclose([token.logprob for token in answer.tokens], logprobs, atol=2e-3)


def test_chunks_batches_and_the_prefix_cache_give_the_same_bits(model: Any) -> None:
    _, spec, runtime = model
    prompts = [prompt_of(spec.processor, parts) for parts in PROMPTS.values()]
    requests = [prompt.request(f"r{number}") for number, prompt in enumerate(prompts)]
    alone = {r.id: run(core_over(runtime), [r])[r.id] for r in requests}
    core = core_over(runtime)
    together = run(core, requests)
    again = run(core, [prompt.request(f"r{n}") for n, prompt in enumerate(prompts)])
    chunked = run(core_over(runtime, max_num_batched_tokens=24), requests)
    for id, answer in alone.items():
        assert together[id].tokens == answer.tokens
        assert again[id].tokens == answer.tokens
        assert chunked[id].tokens == answer.tokens
    assert all(answer.cached_tokens >= BLOCK for answer in again.values())


def test_another_image_of_the_same_size_gives_another_answer(model: Any) -> None:
    _, spec, runtime = model
    core = core_over(runtime)
    answers = [
        run(core, [prompt_of(spec.processor, [[5, START], picture(60, 90, seed), [END]])
                   .request("a")])["a"]
        for seed in (1, 2)
    ]  # fmt: skip
    first, second = ([token.logprob for token in answer.tokens] for answer in answers)
    assert answers[1].cached_tokens == BLOCK
    assert first != second


GGUF = {
    "Qwen2VL": ("qwen2vl", Conversion("qwen2vl_merger", convert_qwen2)),
    "Qwen2_5_VL": (
        "qwen2vl",
        Conversion("qwen2.5vl_merger", convert_qwen2, {"n_wa_pattern": 2, "window_size": 56},
                   ("use_silu",)),
    ),
    "Qwen3VL": (
        "qwen3vl",
        Conversion("qwen3vl_merger", convert_qwen3((0, 1)), {"is_deepstack_layers": [True] * 2},
                   ("use_gelu",)),
    ),
}  # fmt: skip
GGUF["Qwen3VLMoe"] = ("qwen3vlmoe", GGUF["Qwen3VL"][1])


def write_pair(folder: Path, reference: Any, name: str, grid: Any) -> None:
    """Write the model as a GGUF file and an `mmproj` file beside it."""
    architecture, conversion = GGUF[name]
    config = copy.deepcopy(reference.config.text_config)
    config.model_type = architecture
    config.tie_word_embeddings = reference.config.tie_word_embeddings
    tensors = {
        key.replace("model.language_model.", "model."): value
        for key, value in reference.state_dict().items()
        if ".visual." not in key
    }
    text = SimpleNamespace(config=config, state_dict=lambda: tensors)
    sections = [*reference.config.text_config.rope_parameters["mrope_section"], 0]
    keys = {f"{architecture}.rope.dimension_sections": sections}
    if architecture != "qwen2vl":
        keys[f"{architecture}.n_deepstack_layers"] = 2
    export_gguf(text, folder / "m.gguf", extra_keys=keys)
    vision = reference.config.vision_config
    sizes = {
        "image_size": 560,
        "patch_size": grid.patch,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "block_count": vision.depth,
        "attention.head_count": vision.num_heads,
        "projection_dim": 64,
        "image_min_pixels": SIZES["size"]["shortest_edge"],
        "image_max_pixels": SIZES["size"]["longest_edge"],
    }
    tower = {key: value.numpy() for key, value in reference.model.visual.state_dict().items()}
    export(folder / "mmproj-m-f32.gguf", conversion, sizes, tower, "f32", grid.mean, grid.std)


def test_a_gguf_file_with_its_mmproj_answers_as_the_folder(model: Any, tmp_path: Path) -> None:
    reference, spec, runtime = model
    name = type(reference).__name__.removesuffix("ForConditionalGeneration")
    write_pair(tmp_path, reference, name, spec.towers[0].grid)
    own = media_spec(files_at(tmp_path, "m"))
    assert own is not None
    for parts in (PROMPTS["image"], PROMPTS["images and text"]):
        prompt = prompt_of(spec.processor, parts)
        same = prompt_of(own.processor, parts)
        assert (same.token_ids, same.rope) == (prompt.token_ids, prompt.rope)
        wanted = run(core_over(runtime), [prompt.request("a")])["a"]
        answer = run(core_over(started(tmp_path)), [same.request("a")])["a"]
        assert tokens_of(answer) == tokens_of(wanted)
        close = [token.logprob for token in wanted.tokens]
        np.testing.assert_allclose([token.logprob for token in answer.tokens], close, atol=1e-4)


def test_an_mmproj_file_of_another_model_is_refused_by_its_width(
    model: Any, tmp_path: Path
) -> None:
    reference, spec, _ = model
    name = type(reference).__name__.removesuffix("ForConditionalGeneration")
    write_pair(tmp_path, reference, name, spec.towers[0].grid)
    write_small_llama(tmp_path / "llama", width=32, head_dim=8)
    files = replace(files_at(tmp_path / "llama", "m"), mmproj=tmp_path / "mmproj-m-f32.gguf")
    with pytest.raises(ModelError, match=r"have width 64, but the model has 32; name .* --mmproj"):
        load_model(files, "f32")
