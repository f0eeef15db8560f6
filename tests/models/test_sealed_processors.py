"""The processors of all families prepare media in a process without rights as they do here.

A processor that imports a module or opens a file at its first use would fail there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import transformers

from penstock.base.errors import InvalidRequest
from penstock.media.decoders import MediaDecoders
from penstock.media.limits import MediaLimits
from penstock.models.hub.model_files import ModelFiles
from penstock.models.media.prepared import Frames, PreparedMedia, Sound
from penstock.models.media.processor import MediaProcessor
from tests.support.media_files import gray_frames, image_file, sound_file, tone, video_file
from tests.support.speech.whisper_folders import random_whisper
from tests.support.vision_cases import CASES
from tests.support.vision_models import SIZES, TEXT, VISION, media_spec, picture

QWEN = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
FRAMES = np.stack(gray_frames(24, 90, 60))


def image_folder(folder: Path, name: str) -> Path:
    """Write the JSON files of a model with an image processor."""
    if name in QWEN:
        getattr(transformers, f"{name}Config")(
            architectures=[f"{name}ForConditionalGeneration"]
        ).save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text("{}")
        return folder
    case = CASES[name]
    getattr(transformers, f"{case.name}Config")(
        architectures=[f"{case.name}ForConditionalGeneration"],
        text_config=TEXT | case.text,
        vision_config=VISION | case.vision,
        **case.whole,
    ).save_pretrained(folder)
    case.processor().save_pretrained(folder)
    return folder


def here(processor: MediaProcessor, pixels: np.ndarray) -> PreparedMedia | str:
    try:
        return processor.image(pixels)
    except InvalidRequest as error:
        return error.message


async def there(decoders: MediaDecoders, pixels: np.ndarray) -> PreparedMedia | str:
    try:
        return await decoders.prepare("image", image_file(pixels, "PNG"), "input")
    except InvalidRequest as error:
        return error.message


async def close_after(decoders: MediaDecoders, *work: object) -> list[object]:
    try:
        return [await one for one in work]  # type: ignore[attr-defined]
    finally:
        await decoders.close()


@pytest.mark.parametrize("name", [*CASES, *QWEN])
def test_images_and_videos(tmp_path: Path, name: str) -> None:
    folder = image_folder(tmp_path, name)
    processor = media_spec(folder).processor
    pictures = [picture(*size) for size in (*SIZES, (400, 300))]
    video = video_file(list(FRAMES), "webp", fps=8)

    async def prepared() -> list[object]:
        decoders = MediaDecoders(ModelFiles("m", "folder", folder), MediaLimits(processes=1))
        work = [there(decoders, one) for one in pictures]
        if "video" in processor.placeholders:
            work.append(decoders.prepare("video", video, "input"))
        return await close_after(decoders, *work)

    *images, last = asyncio.run(prepared())
    if "video" in processor.placeholders:
        times = processor.frame_times(3.0, len(FRAMES))
        indices = np.round(np.asarray(times) * 8).astype(int)
        expected = processor.video(Frames(FRAMES[indices], tuple(indices / 8), 3.0))
        assert isinstance(last, PreparedMedia)
        np.testing.assert_array_equal(last.array(), expected.array())
        assert last.layout == expected.layout
        assert last.timestamps == pytest.approx(expected.timestamps)
    else:
        images.append(last)
    assert images == [here(processor, one) for one in pictures]


def test_recordings(tmp_path: Path) -> None:
    folder = random_whisper(tmp_path)
    processor = media_spec(folder).processor
    samples = np.round(tone(16_000, 3.3) * 2**15) / np.float32(2**15)

    async def prepared() -> list[object]:
        decoders = MediaDecoders(ModelFiles("m", "folder", folder), MediaLimits(processes=1))
        data = sound_file(samples, 16_000, "wav_s16")
        return await close_after(decoders, decoders.prepare("audio", data, "input"))

    (recording,) = asyncio.run(prepared())
    assert recording == processor.audio(Sound(samples, 16_000))
