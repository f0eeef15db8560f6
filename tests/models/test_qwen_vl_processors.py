"""The processors of the Qwen-VL models give the pixels, tokens and positions of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from penstock.base.errors import InvalidRequest, ModelError
from penstock.models.configuration.qwen_vl import VisionKeys, read_qwen_media
from penstock.models.families import qwen2_vl, qwen3_vl
from penstock.models.media.prepared import Frames, PreparedMedia
from penstock.models.media.processor import PlacedMedia
from penstock.models.media.qwen2_vl_processor import Qwen2VlProcessor
from penstock.models.media.qwen3_vl_processor import Qwen3VlProcessor

IMAGE, VIDEO, START, END = 190, 191, 192, 193
TOKENS = {
    "<|image_pad|>": IMAGE,
    "<|video_pad|>": VIDEO,
    "<|vision_start|>": START,
    "<|vision_end|>": END,
}
SIZES = [(28, 28), (1, 1), (30, 500), (333, 217), (64, 64), (1200, 900), (57, 3000)]


def encode(text: str) -> list[int]:
    """Return a token per special text, or per character."""
    return [TOKENS[text]] if text in TOKENS else list(text.encode())


def decode(token_ids: Sequence[int]) -> str:
    """Return the text of tokens that `encode` has made."""
    texts = {token: text for text, token in TOKENS.items()}
    return "".join(texts.get(token) or chr(token) for token in token_ids)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), np.uint8)


def clip(count: int, height: int, width: int, fps: float = 10.0) -> Frames:
    times = tuple(index / fps for index in range(count))
    return Frames(noise(count, height, width), times, count / fps)


def media_of(folder: Path, family: Any, **files: dict[str, Any]) -> Any:
    """Return the media of `family` in a folder with the JSON `files`."""
    for name, keys in files.items():
        (folder / f"{name}.json").write_text(json.dumps(keys))
    patch = 16 if family is qwen3_vl else 14
    return read_qwen_media(folder, VisionKeys(patch_size=patch), family.DEFAULTS)


def qwen2(folder: Path, tokens_per_second: int = 0, **files: dict[str, Any]) -> Qwen2VlProcessor:
    media = media_of(folder, qwen2_vl, **files)
    return Qwen2VlProcessor(media.pixels, media.sampling, tokens_per_second)


def qwen3(folder: Path, **files: dict[str, Any]) -> Qwen3VlProcessor:
    media = media_of(folder, qwen3_vl, **files)
    return Qwen3VlProcessor(media.pixels, media.sampling)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("family", "keys"),
    [
        (qwen2_vl, {"min_pixels": 3136, "max_pixels": 100_000}),
        (qwen2_vl, {"size": {"shortest_edge": 3136, "longest_edge": 12_845_056}}),
        (qwen3_vl, {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
                    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}),
    ],
)  # fmt: skip
def test_images_equal_those_of_transformers(
    size: tuple[int, int], family: Any, keys: dict[str, Any], tmp_path: Path
) -> None:
    media = media_of(tmp_path, family, preprocessor_config=keys)
    image = noise(*size)
    patch = media.pixels.patch
    reference = Qwen2VLImageProcessorPil(patch_size=patch, **keys)
    wanted = reference(images=[image], return_tensors="np", input_data_format="channels_last")

    prepared = media.pixels.prepare_image(image)

    ours = media.grid.patches(prepared.array())
    assert prepared.layout == tuple(wanted["image_grid_thw"][0])
    np.testing.assert_allclose(ours, wanted["pixel_values"], atol=1e-5)


def test_image_much_longer_than_wide_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="1 x 500 pixels"):
        qwen2(tmp_path).image(noise(500, 1))


def test_an_image_takes_one_token_per_merged_cell(tmp_path: Path) -> None:
    processor = qwen2(tmp_path)
    prepared = processor.image(noise(56, 84))
    assert prepared.layout == (1, 4, 6)
    expansion = processor.expand(prepared, encode)
    assert expansion.token_ids == (IMAGE,) * 6
    assert expansion.runs == ((0, 6),)


def test_keys_in_processor_config_are_read(tmp_path: Path) -> None:
    keys = {"image_processor": {"size": {"shortest_edge": 784, "longest_edge": 1568}},
            "video_processor": {"fps": 4, "min_frames": 2, "max_frames": 6}}  # fmt: skip
    processor = qwen2(tmp_path, processor_config=keys)
    assert processor.image(noise(500, 500)).layout == (1, 2, 2)
    assert len(processor.frame_times(100.0, 3000)) == 6


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"patch_size": 13}, "patch_size is 13, but the vision tower has 14"),
        ({"merge_size": 3}, "merge_size is 3"),
        ({"min_pixels": 9, "max_pixels": 3}, "size: 9 to 3 pixels"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std"),
        ({"image_mean": "x"}, "image_mean"),
    ],
)
def test_bad_keys_are_refused_by_name(keys: dict[str, Any], fault: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=fault):
        qwen2(tmp_path, preprocessor_config=keys)


def test_frames_of_qwen2_start_equal_parts(tmp_path: Path) -> None:
    sampling = qwen2(tmp_path).sampling
    assert sampling.times(2.0, 20) == pytest.approx((0, 0.5, 1.0, 1.5))
    assert len(sampling.times(10_000.0, 300_000)) == 768
    assert sampling.times(1.0, 3) == pytest.approx((0, 1 / 3))


def test_frames_of_qwen3_reach_both_ends(tmp_path: Path) -> None:
    sampling = qwen3(tmp_path).sampling
    indices = np.linspace(0, 49, 10).round().astype(int)
    assert sampling.times(5.0, 50) == pytest.approx(tuple(indices / 10))
    assert sampling.times(0.0, 1) == (0.0,)


def test_a_video_with_an_odd_number_of_frames_repeats_the_last(tmp_path: Path) -> None:
    prepared = qwen3(tmp_path).video(clip(3, 64, 96))
    assert prepared.layout[0] == 2
    pixels = prepared.array()
    assert len(pixels) == 4
    assert np.array_equal(pixels[2], pixels[3])
    assert prepared.timestamps == (0.0, 0.1, 0.2, 0.2)


def test_the_frames_of_qwen3_share_the_pixels_of_the_video(tmp_path: Path) -> None:
    keys = {"size": {"shortest_edge": 4096, "longest_edge": 65_536}}
    processor = qwen3(tmp_path, video_preprocessor_config=keys)
    prepared = processor.video(clip(8, 300, 300))
    groups, rows, columns = prepared.layout
    assert (groups, rows, columns) == (4, 4, 4)
    assert prepared.shape == (8, 64, 64, 3)


def test_qwen3_writes_the_time_of_each_group_of_frames(tmp_path: Path) -> None:
    processor = qwen3(tmp_path)
    prepared = processor.video(clip(4, 64, 64))
    expansion = processor.expand(prepared, encode)
    count = prepared.layout[1] * prepared.layout[2] // 4
    wanted: list[int] = []
    for text in ("<0.1 seconds>", "<0.2 seconds>"):
        wanted += [*text.encode(), START, *[VIDEO] * count, END]
    assert list(expansion.token_ids) == wanted
    assert [expansion.token_ids[at] for at, _ in expansion.runs] == [VIDEO, VIDEO]
    assert all(length == count for _, length in expansion.runs)


def test_qwen3_writes_a_video_as_transformers_does(tmp_path: Path) -> None:
    processor = qwen3(tmp_path)
    prepared = processor.video(clip(6, 64, 96))
    rules: Any = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
        video_token="<|video_pad|>",
        all_special_multimodal_tokens=["<|video_pad|>"],
    )
    rules._calculate_timestamps = lambda *of: Qwen3VLProcessor._calculate_timestamps(rules, *of)
    metadata = SimpleNamespace(fps=10.0, frames_indices=list(range(6)))
    video = {
        "video_grid_thw": np.array([prepared.layout[:3]]),
        "video_metadata": [metadata],
    }
    written = Qwen3VLProcessor.replace_video_token(rules, video, 0)
    rendered = "See <|vision_start|><|video_pad|><|vision_end|>."
    (wanted,), _ = Qwen3VLProcessor.get_text_with_replacements(rules, [rendered], [], [written])
    ours = rendered.replace(
        processor.placeholders["video"], decode(processor.expand(prepared, encode).token_ids)
    )
    assert ours == wanted


def test_the_rate_of_a_qwen25_video_is_part_of_its_identity(tmp_path: Path) -> None:
    processor = qwen2(tmp_path, tokens_per_second=4)
    slow, fast = (processor.video(clip(4, 56, 56, fps)) for fps in (1.0, 2.0))
    assert slow.data == fast.data
    assert slow.digest() != fast.digest()


Item = tuple[str, tuple[int, ...]]
PROMPTS: list[list[int | tuple[str, int, int]]] = [
    [3, ("image", 70, 90), 1],
    [("image", 30, 30), 4, ("image", 120, 40), 2],
    [3, ("video", 60, 90), 7, ("image", 64, 64)],
    [2, ("video", 60, 60), 1, ("video", 90, 40), 3],
]
"""Numbers of text tokens, and items with height and width."""


def place(
    processor: Any, prompt: list[int | tuple[str, int, int]]
) -> tuple[list[int], list[PlacedMedia]]:
    """Return the token ids of `prompt` and its items. The frames of videos are 0.7 s apart."""
    token_ids: list[int] = []
    items: list[PlacedMedia] = []
    for part in prompt:
        if isinstance(part, int):
            token_ids += [5] * part
            continue
        kind, height, width = part
        media: PreparedMedia = (
            processor.image(noise(height, width))
            if kind == "image"
            else processor.video(clip(6, height, width, 1 / 0.7))
        )
        expansion = processor.expand(media, encode)
        items.append(PlacedMedia(media, expansion, len(token_ids)))
        token_ids += expansion.token_ids
    return token_ids, items


def reference_positions(
    model: Any, token_ids: list[int], items: list[PlacedMedia], **facts: Any
) -> np.ndarray:
    """Return what `get_rope_index` of a transformers model computes."""
    grids: dict[str, list[tuple[int, ...]]] = {"image": [], "video": []}
    for item in items:
        grids[item.media.kind].append(item.media.layout[:3])
    ids = torch.tensor([token_ids])
    kinds = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=4)
    of_model = SimpleNamespace(
        config=SimpleNamespace(vision_config=vision),
        get_vision_position_ids=lambda *a, **k: model.get_vision_position_ids(None, *a, **k),
    )
    positions, _ = model.get_rope_index(
        of_model,
        ids,
        kinds,
        torch.tensor(grids["image"]) if grids["image"] else None,
        torch.tensor(grids["video"]) if grids["video"] else None,
        **facts,
    )
    return positions[:, 0].numpy()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_positions_of_qwen2_equal_those_of_transformers(prompt: Any, tmp_path: Path) -> None:
    processor = qwen2(tmp_path)
    token_ids, items = place(processor, prompt)
    ours = processor.rope_positions(token_ids, items)
    assert ours is not None
    assert np.array_equal(ours, reference_positions(Qwen2VLModel, token_ids, items))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_positions_of_qwen25_equal_those_of_transformers(prompt: Any, tmp_path: Path) -> None:
    processor = qwen2(tmp_path, Qwen2_5_VLConfig().vision_config.tokens_per_second)
    token_ids, items = place(processor, prompt)
    ours = processor.rope_positions(token_ids, items)
    assert ours is not None
    seconds = [1.4] * len(items)
    wanted = reference_positions(
        Qwen2_5_VLModel, token_ids, items, second_per_grid_ts=torch.tensor(seconds)
    )
    assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_positions_of_qwen3_equal_those_of_transformers(prompt: Any, tmp_path: Path) -> None:
    processor = qwen3(tmp_path)
    token_ids, items = place(processor, prompt)
    ours = processor.rope_positions(token_ids, items)
    assert ours is not None
    assert np.array_equal(ours, reference_positions(Qwen3VLModel, token_ids, items))


def test_a_prompt_without_media_has_plain_positions(tmp_path: Path) -> None:
    assert qwen3(tmp_path).rope_positions([1, 2, 3], []) is None
