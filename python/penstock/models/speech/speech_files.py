"""Tells speech models from their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.quant.json_file import read_json
from penstock.quant.safetensors.safetensors_file import shard_names

TTS_MODEL_TYPES: Final = ("csm", "dia", "vits")
"""`model_type` of the speech models that transformers runs."""


@dataclass(frozen=True, slots=True)
class KokoroFiles:
    """The files of a Kokoro model.

    `model`: the ONNX file.
    `voices`: one `.bin` file of float32 [510, 1, 256] per voice.
    `vocabulary`: a config.json or tokenizer.json with the vocabulary, None for the published one.
    """

    model: Path
    voices: tuple[Path, ...]
    vocabulary: Path | None = None


def kokoro_files(folder: Path) -> KokoroFiles | None:
    """Return the files of the Kokoro model in `folder`, None if it has none: an ONNX file in the
    folder or its subfolder `onnx`, and `voices/*.bin`."""
    models = sorted((*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")), key=_precision)
    voices = tuple(sorted(folder.glob("voices/*.bin")))
    if not models or not voices:
        return None
    named = (folder / name for name in ("config.json", "tokenizer.json"))
    return KokoroFiles(models[0], voices, next(filter(_has_vocabulary, named), None))


def is_piper_voice(path: Path) -> bool:
    """Return whether `path` is a Piper voice: an ONNX file beside its `.onnx.json`."""
    return path.suffix == ".onnx" and piper_config(path).is_file()


def piper_config(model: Path) -> Path:
    """Return the path of the settings of a Piper voice."""
    return model.with_name(f"{model.name}.json")


def is_transformers_speech(folder: Path) -> bool:
    """Return whether a folder holds a speech model that transformers runs. Raises ModelError for an
    invalid config.json."""
    config = folder / "config.json"
    return config.is_file() and model_type(config) in TTS_MODEL_TYPES


def transformers_weights(folder: Path) -> list[Path]:
    """Return the weight files of a folder of transformers. The key `transformers_weights` of its
    config.json names them if the folder has others beside them. Raises ModelError for an invalid
    file."""
    named = read_json(folder / "config.json", dict[str, Any]).get("transformers_weights")
    if not isinstance(named, str):
        return sorted(folder.rglob("*.safetensors"))
    names = shard_names(folder / named) if named.endswith(".index.json") else [named]
    return [path for path in (folder / name for name in names) if path.is_file()]


def model_type(config: Path) -> str:
    """Return the `model_type` of a config.json, "" without one. Raises ModelError."""
    return str(read_json(config, dict[str, Any]).get("model_type", ""))


def _has_vocabulary(path: Path) -> bool:
    if not path.is_file():
        return False
    read = read_json(path, dict[str, Any])
    model = read.get("model")
    return isinstance(read.get("vocab"), dict) or (
        isinstance(model, dict) and isinstance(model.get("vocab"), dict)
    )


def _precision(path: Path) -> tuple[bool, str]:
    """Return the sort key of an ONNX file: `model.onnx` and other plain names come before those of
    quantized variants, such as `model_q8f16.onnx`."""
    return any(mark in path.stem for mark in ("_q", "_uint8", "_fp16", "int8")), path.name
