"""Reads the media side of a model, without its weights."""

from __future__ import annotations

from penstock.models.families.registry import media_spec_of_folder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.towers.tower import MediaSpec


def media_spec_of(files: ModelFiles) -> MediaSpec | None:
    """Return the processor and the towers of a model, None if it reads text only. Raises ModelError
    naming file and key."""
    return media_spec_of_folder(files.path) if files.kind == "folder" else None
