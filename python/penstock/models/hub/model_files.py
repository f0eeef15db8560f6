"""Locates a model's files on disk, checks paths given by users and computes fingerprints of
files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.base.errors import ModelError
from penstock.models.speech.speech_files import piper_config
from penstock.quant.gguf.split_names import split_file_names

HEAD_BYTES = 1 << 16
SAMPLE_BYTES = 4096
SAMPLES = 64
SHOWN_CHARS = 80

FilesKind: TypeAlias = Literal["gguf", "folder", "voice", "pipeline"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk.

    - `kind`: "voice" is a Kokoro model or a Piper voice, "pipeline" a folder of diffusers.
    - `path`: a .gguf file, the first .gguf file of a split set, a Piper voice's .onnx file, or a
      folder.
    - `mmproj`: the .gguf file with the towers of a multimodal model; None: there is none.
    """

    model_id: str
    kind: FilesKind
    path: Path
    mmproj: Path | None = None


def path_at(name: str) -> Path | None:
    """Return the path that a user named, or None if it does not exist. Raises ModelError if the
    name is too long, is not accessible, or refers to the home of an unknown user."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        shown = name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}..."
        raise ModelError(f"{shown} is not a usable path: {cause}") from None


def fingerprint(files: ModelFiles) -> str:
    """Return 16 hexadecimal digits that identify the content of a model, independently of its
    location.

    The hash covers each file's name, size, first bytes and samples of its content: hashing
    everything would read a model twice. Downloads are checked in full elsewhere. Raises ModelError
    if a file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        for path in _parts(files):
            inside = files.path.is_dir() and path != files.mmproj
            name = path.relative_to(files.path).as_posix() if inside else path.name
            digest.update(f"{name} {path.stat().st_size}\n".encode())
            _update_with_samples(digest, path)
    except OSError as error:
        raise ModelError(f"{files.path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16]


def gguf_parts(path: Path) -> list[Path]:
    """Return a GGUF file and, if it is the first file of a split set, the other existing files of
    the set."""
    others = map(path.with_name, split_file_names(path.name)[1:])
    return [path, *(other for other in others if other.exists())]


def _parts(files: ModelFiles) -> list[Path]:
    towers = [] if files.mmproj is None else [files.mmproj]
    if files.kind == "gguf":
        return gguf_parts(files.path) + towers
    if files.path.is_file():
        return [files.path, piper_config(files.path)]
    suffixes = {".json", ".safetensors", ".jinja", ".onnx"}
    inside = (*files.path.glob("*"), *files.path.glob("*/*"))  # modules, additional chat templates
    return sorted(path for path in inside if path.suffix in suffixes and path.is_file()) + towers


def _update_with_samples(digest: hashlib._Hash, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(HEAD_BYTES))
        step = max((size - HEAD_BYTES) // SAMPLES, SAMPLE_BYTES)
        for offset in range(HEAD_BYTES, size, step):
            file.seek(offset)
            digest.update(file.read(SAMPLE_BYTES))
