"""Loads the image model in a model's files."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles
from penstock.runtime.images.painter import Painter


def load_image_model(
    files: ModelFiles, settings: EngineSettings, available: int | None = None
) -> Painter:
    """Return the image model in `files`. `available`: bytes of memory that it must fit, None for no
    check. Raises ModelError if it cannot be read, does not fit, or needs packages that are not
    installed."""
    try:
        # Importing torch takes two seconds; only image models need it.
        from penstock.runtime.images.diffusers_painter import load_painter
    except ImportError as error:
        raise ModelError(
            f"image models need more packages: pip install 'penstock[images]' ({error})"
        ) from None
    return load_painter(files, settings, available)
