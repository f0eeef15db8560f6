"""The keys of image and video processors come from the file from which `transformers` reads
them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.image_processing_base import ImageProcessingMixin
from transformers.video_processing_utils import BaseVideoProcessor

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_processor import PixelKeys, pixel_keys
from penstock.models.media.image_config import ImageConfig, read_image_config, read_video_config

NESTED = {"image_processor": {"size": {"longest_edge": 1}}, "video_processor": {"size": {"a": 2}}}
IMAGE, VIDEO = {"size": {"longest_edge": 3}}, {"size": {"longest_edge": 4}}
FOLDERS: dict[str, dict[str, Any]] = {
    "one file for all processors": {"processor_config.json": NESTED},
    "one file beside older files": {
        "processor_config.json": NESTED,
        "preprocessor_config.json": IMAGE,
        "video_preprocessor_config.json": VIDEO,
    },
    "a file with other keys beside older files": {
        "processor_config.json": {"image_seq_len": 5, "image_processor": None},
        "preprocessor_config.json": IMAGE,
        "video_preprocessor_config.json": VIDEO,
    },
    "one file for images and videos": {"preprocessor_config.json": IMAGE},
    "images in one file, videos in another": {
        "processor_config.json": {"image_processor": NESTED["image_processor"]},
        "video_preprocessor_config.json": VIDEO,
    },
}


def written(folder: Path, files: dict[str, Any]) -> Path:
    for name, keys in files.items():
        (folder / name).write_text(json.dumps(keys))
    return folder


@pytest.mark.parametrize("files", FOLDERS.values(), ids=FOLDERS)
def test_both_readers_find_the_keys_of_transformers(tmp_path: Path, files: Any) -> None:
    folder = written(tmp_path, files)
    image, _ = ImageProcessingMixin.get_image_processor_dict(str(folder))
    video, _ = BaseVideoProcessor.get_video_processor_dict(str(folder))
    assert read_image_config(folder, ImageConfig).size == image["size"]
    assert read_video_config(folder, ImageConfig).size == video["size"]
    assert pixel_keys(folder, "image_processor")[0].size == image["size"]
    assert pixel_keys(folder, "video_processor")[0].size == video["size"]


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"preprocessor_config\.json does not exist, and"):
        read_image_config(tmp_path, ImageConfig)
    assert pixel_keys(tmp_path, "image_processor")[0] == PixelKeys()


def test_a_wrong_key_is_named_with_its_file(tmp_path: Path) -> None:
    written(tmp_path, {"processor_config.json": {"image_processor": {"size": "large"}}})
    for read in (
        lambda: read_image_config(tmp_path, ImageConfig),
        lambda: pixel_keys(tmp_path, "image_processor"),
    ):
        with pytest.raises(ModelError, match=r"processor_config.json: image_processor: .*size"):
            read()
