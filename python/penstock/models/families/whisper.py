"""Whisper: speech to text. Its decoder is no language model and has a runtime of its own."""

from __future__ import annotations

from pathlib import Path

from penstock.models.configuration.family import Family, MediaFamily
from penstock.models.towers.tower import MediaSpec
from penstock.models.whisper.folder import ARCHITECTURE, whisper_spec
from penstock.models.whisper.processor import WhisperProcessor
from penstock.models.whisper.tower import WhisperTowerSpec


def read_folder(folder: Path) -> MediaSpec:
    """Read the processor and the encoder."""
    spec = whisper_spec(folder)
    processor = WhisperProcessor(spec.encoder.mels, spec.encoder.frames)
    return MediaSpec(processor, (WhisperTowerSpec(spec),))


FAMILY = Family(media=MediaFamily(ARCHITECTURE, read_folder))
