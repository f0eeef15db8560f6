"""Opens the media side of a model: its processor and towers, from its folder or an `mmproj`
file."""

from __future__ import annotations

from typing import Literal

from penstock.base.errors import ModelError
from penstock.models.families import registry
from penstock.models.hub.model_files import ModelFiles
from penstock.models.media.processor_files import PROCESSOR_FILES
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.tower import LoadedTower, MediaSpec
from penstock.models.whisper.folder import is_whisper
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.gguf.gguf_file import GgufFile


def media_spec(files: ModelFiles) -> MediaSpec | None:
    """Return the media side of a model, or None if it takes text only. A folder without the
    configuration of an image or audio processor is that of a text model, unless it transcribes
    speech. Reads no tensors. Raises ModelError naming file and key."""
    if files.mmproj is not None:
        return registry.media_spec_of_mmproj(GgufFile(files.mmproj))
    if files.kind == "gguf":
        return None
    has_processor = any((files.path / name).exists() for name in PROCESSOR_FILES)
    if not has_processor and not is_whisper(files):
        return None
    return registry.media_spec_of_folder(files.path)


def open_towers(
    files: ModelFiles,
    spec: MediaSpec | None,
    checkpoint: Checkpoint,
    width: int,
    dtype: Literal["auto", "f32"],
) -> tuple[LoadedTower, ...]:
    """Find and check the tensors of the towers in `spec`, in its order; () for None.

    - `checkpoint`: the model's own weights, which have the towers unless there is an `mmproj` file.
    - `width`: the width of the language model.

    Raises ModelError naming the file and the tensor at fault.
    """
    if spec is None:
        return ()
    source = checkpoint if files.mmproj is None else GgufFile(files.mmproj)
    for tower in spec.towers:
        if isinstance(tower, MmprojTower) and tower.width != width:
            raise ModelError(
                f"{files.mmproj}: its embeddings have width {tower.width}, but the model has"
                f" {width}; name the model's own file with --mmproj, or off"
            )
    return tuple(tower.open(source, dtype) for tower in spec.towers)
