"""Finds the keys of the image and video processors in the JSON files of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from penstock.quant.json_file import read_json

MediaPart: TypeAlias = Literal["image_processor", "video_processor"]

PROCESSOR_FILE: Final = "processor_config.json"
IMAGE_FILE: Final = "preprocessor_config.json"
VIDEO_FILE: Final = "video_preprocessor_config.json"
PROCESSOR_FILES: Final = (IMAGE_FILE, PROCESSOR_FILE)
"""The files of which a multimodal folder has at least one."""

_OWN_FILES: Final[dict[MediaPart, tuple[str, ...]]] = {
    "image_processor": (IMAGE_FILE,),
    "video_processor": (VIDEO_FILE, IMAGE_FILE),
}
"""The part of processor_config.json -> the files that have its keys in older folders."""


def processor_part(folder: Path, part: MediaPart) -> tuple[dict[str, Any] | None, str]:
    """Return the keys of a processor and where they are, for error messages; None if no file has
    them. As in transformers, the part of processor_config.json precedes the older files, the first
    of which is read as a whole. Raises ModelError if a file cannot be read."""
    keys = read_processor_keys(folder).get(part)
    if isinstance(keys, dict):
        return keys, f"{folder / PROCESSOR_FILE}: {part}"
    for name in _OWN_FILES[part]:
        if (folder / name).exists():
            return read_json(folder / name, dict[str, Any]), str(folder / name)
    return None, str(folder / _OWN_FILES[part][0])


def has_video_config(folder: Path) -> bool:
    """Return whether a folder has settings of a video processor."""
    return (folder / VIDEO_FILE).exists() or "video_processor" in read_processor_keys(folder)


def read_processor_keys(folder: Path) -> dict[str, Any]:
    """Return the keys of processor_config.json; none if the folder has no such file."""
    path = folder / PROCESSOR_FILE
    return read_json(path, dict[str, Any]) if path.exists() else {}
