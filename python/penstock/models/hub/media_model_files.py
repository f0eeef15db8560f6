"""Lists the files of image and speech models in a repository or a downloaded folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Final

from penstock.models.speech.speech_files import kokoro_files
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.safetensors_file import shard_names

PIPELINE_INDEX: Final = "model_index.json"
SHARD_INDEX: Final = ".safetensors.index.json"
PIPELINE_SUFFIXES: Final = (".json", ".txt", ".model", ".jinja", ".safetensors")
KOKORO_FOLDERS: Final = ("onnx", "voices")
KOKORO_MODEL: Final = "onnx/model.onnx"
KOKORO_SMALL: Final = ("config.json", "tokenizer.json")


def component_folders(folder: Path) -> list[str]:
    """Return the subfolders of a diffusers pipeline, from its model_index.json. Raises ModelError
    for an invalid file."""
    index = read_json(folder / PIPELINE_INDEX, dict[str, Any])
    return sorted(
        name for name, entry in index.items() if isinstance(entry, list) and entry and entry[0]
    )


def pipeline_files(names: Iterable[str], folders: Collection[str]) -> list[str]:
    """Return the files that a pipeline needs. `names`: paths in its repository. `folders`: see
    `component_folders`. Weights of variants, such as `model.fp16.safetensors`, are left out."""
    wanted = []
    for name in names:
        path = PurePosixPath(name)
        inside = str(path.parent) in folders and path.suffix in PIPELINE_SUFFIXES
        if inside and not _is_variant(path.name):
            wanted.append(name)
    return wanted


def kokoro_repository_files(names: Iterable[str]) -> list[str]:
    """Return the files of a Kokoro model in ONNX form. `names`: paths in its repository."""
    return [
        name
        for name in names
        if name == KOKORO_MODEL
        or name in KOKORO_SMALL
        or (name.startswith("voices/") and name.endswith(".bin"))
    ]


def is_complete_media_model(folder: Path) -> bool:
    """Return whether a folder has all files of a Kokoro model or a pipeline. Raises ModelError for
    an invalid file."""
    if not (folder / PIPELINE_INDEX).is_file():
        return kokoro_files(folder) is not None
    for name in component_folders(folder):
        component = folder / name
        if not component.is_dir() or not any(component.iterdir()):
            return False
        for index in component.glob(f"*{SHARD_INDEX}"):
            if not all((component / shard).exists() for shard in shard_names(index)):
                return False
    return True


def _is_variant(name: str) -> bool:
    stem, found, rest = name.partition(".safetensors")
    return bool(found) and ("." in stem or rest not in ("", ".index.json"))
