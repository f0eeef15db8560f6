"""The tokens of images in prompts are those of `transformers`' processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from penstock.models.media.number_words import number_words
from penstock.models.media.prepared import Frames
from tests.support.vision_cases import CASES, PAN_AND_SCAN, Case
from tests.support.vision_models import (
    SIZES,
    VISION,
    media_spec,
    normalized_tiles,
    picture,
    shown_among,
)

SPECIAL = (
    *("<pad>", "<s>", "</s>", "<image>", "<video>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *("<img>", "</img>", "<IMG_CONTEXT>", "<start_of_image>", "<end_of_image>", "<soft>"),
)
INTERNVL = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
GEMMA = {
    "image_token": "<soft>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
}
ROW_TOKENS = {"InternVL": "<IMG_CONTEXT>", "Gemma3": "<soft>", "Mistral3": "[IMG]"}


def tokenizer(**extra: str) -> Any:
    """Return a tokenizer of bytes and special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL[3:])})
    for name, token in extra.items():
        setattr(made, name, token)
        setattr(made, f"{name}_id", made.convert_tokens_to_ids(token))
    return made


def llava(images: Any, tokens: Any) -> Any:
    return transformers.LlavaProcessor(images, tokens, 7, "default", num_additional_image_tokens=1)


def llava_next(images: Any, tokens: Any) -> Any:
    return transformers.LlavaNextProcessor(
        images, tokens, 7, "default", num_additional_image_tokens=1
    )


def idefics(images: Any, tokens: Any) -> Any:
    return transformers.Idefics3Processor(images, tokens, image_seq_len=4)


def gemma(images: Any, tokens: Any) -> Any:
    return transformers.Gemma3Processor(images, tokens, image_seq_length=4)


def panning_gemma(images: Any, tokens: Any) -> Any:
    """Return a processor that crops: the defaults of its class turn cropping off."""
    processor = gemma(images, tokens)
    processor.images_kwargs = PAN_AND_SCAN
    return processor


PROCESSORS: dict[str, tuple[Callable[[Any, Any], Any], dict[str, str]]] = {
    "llava": (llava, {}),
    "llava-next": (llava_next, {}),
    "idefics3": (idefics, {}),
    "idefics3 without tiles": (idefics, {}),
    "gemma3": (gemma, GEMMA),
    "gemma3 with pan and scan": (panning_gemma, GEMMA),
}


def saved(name: str, folder: Path, tokens: Any) -> tuple[Case, Any]:
    """Save the config and the image processor of a case. Return the case and the processor. Ids of
    image tokens are those of `tokens`."""
    case = CASES[name]
    row = tokens.convert_tokens_to_ids(ROW_TOKENS.get(case.name, "<image>"))
    ids = dict.fromkeys(case.whole.keys() & {"image_token_id", "image_token_index"}, row)
    video = {"video_token_index": tokens.convert_tokens_to_ids("<video>")}
    if "video_token_index" in case.whole:
        ids |= video
    config = getattr(transformers, f"{case.name}Config")(
        text_config=case.text, vision_config=vision_keys(case), **(case.whole | ids)
    )
    config.architectures = [f"{case.name}ForConditionalGeneration"]
    config.save_pretrained(folder)
    images = case.processor()
    images.save_pretrained(folder)
    return case, images


def vision_keys(case: Case) -> dict[str, Any]:
    return VISION | case.vision


def our_ids(folder: Path, text: str, tokens: Any, pictures: list[np.ndarray]) -> list[int]:
    """Return the tokens of a prompt with images in place of the placeholders."""

    def encode(part: str) -> list[int]:
        ids: list[int] = tokens(part, add_special_tokens=False)["input_ids"]
        return ids

    processor = media_spec(folder).processor
    first, *rest = text.split(processor.placeholders["image"])
    ids = encode(first)
    for part, pixels in zip(rest, pictures, strict=True):
        expansion = processor.expand(processor.image(pixels), encode)
        ids += expansion.token_ids
        ids += encode(part) if part else []
        for start, count in expansion.runs:
            assert len(set(expansion.token_ids[start : start + count])) == 1
    return ids


@pytest.mark.parametrize("name", list(PROCESSORS))
def test_tokens_of_images_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    make, extra = PROCESSORS[name]
    tokens = tokenizer(**extra)
    _, images = saved(name, tmp_path, tokens)
    processor = make(images, tokens)
    placeholder = media_spec(tmp_path).processor.placeholders["image"]
    for sizes in (SIZES[:1], SIZES[2:4], SIZES):
        text = "What" + "".join(f" is {placeholder}\nand" for _ in sizes)
        pictures = [picture(*size) for size in sizes]
        given = [Image.fromarray(pixels) for pixels in pictures]
        expected = processor(text=text, images=given, add_special_tokens=False)["input_ids"]
        assert our_ids(tmp_path, text, tokens, pictures) == list(np.asarray(expected).reshape(-1))


@pytest.mark.parametrize("name", ["llava with pixtral", "mistral3"])
def test_lines_of_pixtral_end_with_a_token(name: str, tmp_path: Path) -> None:
    tokens = tokenizer()
    merge = 2 if name == "mistral3" else 1
    saved(name, tmp_path, tokens)
    pixels = picture(37, 60)
    expansion = media_spec(tmp_path).processor.expand(
        media_spec(tmp_path).processor.image(pixels),
        lambda text: tokens(text, add_special_tokens=False)["input_ids"],
    )
    lines, columns = (-(-edge // (7 * merge)) for edge in (37, 60))
    line = [expansion.token_ids[0]] * columns
    end, last = tokens.convert_tokens_to_ids(["[IMG_BREAK]", "[IMG_END]"])
    assert list(expansion.token_ids) == [*([*line, end]) * (lines - 1), *line, last]


def test_tiles_of_internvl_are_one_run(tmp_path: Path) -> None:
    tokens = tokenizer(**INTERNVL)
    _, images = saved("internvl", tmp_path, tokens)
    for size in SIZES:
        pixels = picture(*size)
        given = images(Image.fromarray(pixels), return_tensors="np")
        owner = SimpleNamespace(**INTERNVL, image_token="<IMG_CONTEXT>", image_seq_length=4)
        expected = transformers.InternVLProcessor.replace_image_token(
            owner, {"num_patches": given["num_patches"]}, 0
        )
        ids = our_ids(tmp_path, "<IMG_CONTEXT>", tokens, [pixels])
        assert ids == tokens(expected, add_special_tokens=False)["input_ids"]


def test_images_of_onevision_have_as_many_tokens_as_in_transformers(tmp_path: Path) -> None:
    tokens = tokenizer()
    case, images = saved("llava-onevision", tmp_path, tokens)
    owner = SimpleNamespace(
        num_image_tokens=16,
        image_processor=images,
        vision_aspect_ratio=case.whole["vision_aspect_ratio"],
        vision_feature_select_strategy="full",
        image_token="<image>",
    )
    plain = transformers.LlavaOnevisionProcessor
    owner._get_unpadded_features = lambda *sizes: plain._get_unpadded_features(owner, *sizes)
    for size in SIZES:
        expected = plain._get_number_of_features(owner, *size, 28, 28)
        assert len(our_ids(tmp_path, "<image>", tokens, [picture(*size)])) == expected


def test_several_images_of_onevision_have_one_tile_each(tmp_path: Path) -> None:
    tokens = tokenizer()
    _, images = saved("llava-onevision", tmp_path, tokens)
    spec = media_spec(tmp_path)
    pictures = [picture(*size) for size in SIZES]
    shown = [shown_among(spec.processor, spec.processor.image(p), len(SIZES)) for p in pictures]
    given = images([[Image.fromarray(p) for p in pictures]], return_tensors="np")
    owner: Any = SimpleNamespace(
        num_image_tokens=16, vision_feature_select_strategy="full", image_token="<image>"
    )
    for number, media in enumerate(shown):
        (tile,) = normalized_tiles(spec, media)
        np.testing.assert_allclose(tile, given["pixel_values"][number][0], rtol=0, atol=1e-5)
        text = transformers.LlavaOnevisionProcessor.replace_image_token(owner, given, number)
        expansion = spec.processor.expand(media, lambda part: tokens(part)["input_ids"])
        assert len(expansion.token_ids) == text.count("<image>") == 17


def test_frames_of_smolvlm_follow_their_times(tmp_path: Path) -> None:
    tokens = tokenizer()
    saved("smolvlm, positions of a larger image", tmp_path, tokens)
    processor = media_spec(tmp_path).processor
    frames = Frames(np.stack([picture(20, 30, seed) for seed in (1, 2)]), (0.0, 62.5), 3725.9)
    expansion = processor.expand(
        processor.video(frames), lambda text: tokens(text, add_special_tokens=False)["input_ids"]
    )
    around, whole = "<fake_token_around_image>", "<global-img>"
    image = f"{around}{whole}<image>{around}"
    text = (
        "You are provided the following series of two frames from a 1:02:05 [H:MM:SS] video.\n"
        f"\nFrame from 00:00:{image}\nFrame from 01:02:{image}\n\n"
    )
    assert list(expansion.token_ids) == tokens(text, add_special_tokens=False)["input_ids"]


def test_frames_of_internvl_are_numbered(tmp_path: Path) -> None:
    tokens = tokenizer(**INTERNVL)
    saved("internvl", tmp_path, tokens)
    processor = media_spec(tmp_path).processor
    frames = Frames(np.stack([picture(20, 30, seed) for seed in (1, 2)]), (0.0, 1.0), 2.0)
    expansion = processor.expand(
        processor.video(frames), lambda text: tokens(text, add_special_tokens=False)["input_ids"]
    )
    image = f"<img>{'<IMG_CONTEXT>' * 4}</img>"
    text = f"Frame1: {image}\nFrame2: {image}"
    assert list(expansion.token_ids) == tokens(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (64, "sixty-four"),
        (100, "one hundred"),
        (342, "three hundred and forty-two"),
        (1005, "one thousand and five"),
        (2150, "two thousand, one hundred and fifty"),
    ],
)
def test_numbers_are_written_in_words(number: int, words: str) -> None:
    assert number_words(number) == words
