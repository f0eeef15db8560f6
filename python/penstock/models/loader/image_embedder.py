"""Opens models that only embed media: a tower whose result is the vector (CLIP, SigLIP)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.loader.media import media_spec, open_towers
from penstock.models.towers.image_embedder import ImageEmbedderSpec
from penstock.models.towers.tower import LoadedTower, MediaSpec
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class LoadedImageEmbedder:
    """A model whose towers turn an item into one row, its vector. The weights are read when a tower
    is built.

    - `width`: numbers per vector.
    """

    model_id: str
    fingerprint: str
    media_spec: MediaSpec
    media: tuple[LoadedTower, ...]
    width: int


def is_image_embedder(files: ModelFiles) -> bool:
    """Return whether a model only embeds images: its towers make vectors. Raises ModelError if the
    files cannot be read."""
    spec = media_spec(files) if files.kind == "folder" else None
    towers = () if spec is None else spec.towers
    return any(isinstance(tower, ImageEmbedderSpec) for tower in towers)


def load_image_embedder(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedImageEmbedder:
    """Open a model for which `is_image_embedder` is true. Raises ModelError as `load_model`
    does."""
    spec = media_spec(files)
    assert spec is not None, "an image embedder has a media side"
    (tower,) = spec.towers
    assert isinstance(tower, ImageEmbedderSpec)
    checkpoint = open_checkpoint(files.path, "bf16")
    return LoadedImageEmbedder(
        files.model_id,
        fingerprint(files),
        spec,
        open_towers(files, spec, checkpoint, tower.width, dtype),
        tower.width,
    )
