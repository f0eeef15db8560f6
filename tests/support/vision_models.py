"""Small random multimodal models in Hugging Face folders, and their image rows with our towers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from penstock import _native
from penstock.kernels.native.ops import NativeOps
from penstock.models.families import registry
from penstock.models.media.prepared import PreparedMedia
from penstock.models.media.processor import MediaAmongOthers, MediaProcessor
from penstock.models.media.tiles import TileLayout
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import MediaSpec, Tower
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
}
SIZES = ((1, 1), (1, 100), (37, 91), (64, 48), (150, 10))
"""(height, width) of the images of tests."""


def picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return an image of random blocks and noise, [height, width, 3]."""
    source = np.random.default_rng(seed)
    blocks = source.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3))
    large = np.repeat(np.repeat(blocks, 8, 0), 8, 1)[:height, :width]
    return np.clip(large + source.integers(-20, 20, large.shape), 0, 255).astype(np.uint8)


def small_model(
    name: str, text: dict[str, Any], vision: dict[str, Any], whole: dict[str, Any]
) -> Any:
    """Return a float32 model `name`ForConditionalGeneration with weights large enough to expose
    errors."""
    config = getattr(transformers, f"{name}Config")(
        text_config=TEXT | text, vision_config=VISION | vision, **whole
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return randomized(getattr(transformers, f"{name}ForConditionalGeneration")(config))


def randomized(model: Any) -> Any:
    """Return the model in float32 with random parameters."""
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


def save(folder: Path, model: Any, processor: Any) -> Path:
    """Save the model and the image processor."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def media_spec(folder: Path) -> MediaSpec:
    """Return the media side of the model in `folder`."""
    spec = registry.media_spec_of_folder(folder)
    assert spec is not None
    return spec


def shown_among(processor: MediaProcessor, media: PreparedMedia, images: int) -> PreparedMedia:
    """Return an item as it is shown in a prompt with this number of images."""
    if isinstance(processor, MediaAmongOthers):
        return processor.among(media, images)
    return media


def native_ops(threads: int = 2) -> NativeOps:
    return NativeOps.eager(_native.ThreadPool(threads))


def built_tower(folder: Path, ops: Any) -> Tower[Any]:
    """Return the folder's tower, packed for `ops`."""
    (tower,) = media_spec(folder).towers
    return tower.open(SafetensorsFolder(folder), "auto").build(ops)


def drained(pieces: Generator[None, None, Any]) -> tuple[Any, int]:
    """Run a generator to its end. Return its result and the number of its pieces."""
    count = 0
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value, count
        count += 1


def encoded(folder: Path, media: PreparedMedia) -> npt.NDArray[np.float32]:
    """Return the rows of an item."""
    ops = native_ops()
    pieces = built_tower(folder, ops).encode(ops, media, PieceBudget())
    rows: npt.NDArray[np.float32] = drained(pieces)[0].rows
    return rows


def normalized_tiles(spec: MediaSpec, media: PreparedMedia) -> list[npt.NDArray[np.float32]]:
    """Return the tiles of an item as transformers' `pixel_values`, [3, height, width] each."""
    (tower,) = spec.towers
    values = tower.normalization.apply(media.array())  # type: ignore[attr-defined]
    side = round((values.shape[1] // 3) ** 0.5)
    tiles, start = [], 0
    for rows, columns in TileLayout.of(media).grids:
        part = values[start : start + rows * columns].reshape(rows, columns, side, side, 3)
        start += rows * columns
        tiles.append(part.transpose(4, 0, 2, 1, 3).reshape(3, rows * side, columns * side))
    return tiles


def joined(parts: Sequence[torch.Tensor] | torch.Tensor) -> npt.NDArray[np.float32]:
    """Return the image rows of `get_image_features` as one matrix."""
    each = [part.reshape(-1, part.shape[-1]) for part in parts]
    result: npt.NDArray[np.float32] = torch.cat(each).numpy()
    return result
