"""Reads towers and projectors over tiles of images from `mmproj` GGUF files: LLaVA, Gemma 3,
Idefics 3, InternVL, Pixtral and LFM2-VL.

The files have neither the ids of tokens nor all numbers of the image processors: texts and numbers
are those of the published models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.checkpoint.mmproj_checkpoint import RowOrder, in_order
from penstock.models.configuration.mmproj import MmprojVision, read_vision, size
from penstock.models.decoder.head_rows import deinterleaved_rows
from penstock.models.media.image_processor import ImageProcessor, Marking, Tiling
from penstock.models.media.tiles import Normalization
from penstock.models.towers.axial_rope import AxialRope
from penstock.models.towers.image_tower import Arrangement, ImageTowerSpec
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.position_grids import PositionScheme
from penstock.models.towers.projector import ProjectorLayer, ProjectorSpec
from penstock.models.towers.tower import MediaSpec
from penstock.models.towers.vision_spec import VisionActivation, VisionSpec
from penstock.quant.gguf.gguf_file import GgufFile

ROW_TOKEN: Final = 0
"""The token of a row of an image. Its own embedding is never used."""


@dataclass(frozen=True, slots=True)
class LearnedLines:
    """The arrangement of the rows of several tiles, and the name of the learned row that it
    adds."""

    arrangement: Arrangement
    separator: str


@dataclass(frozen=True, slots=True)
class MmprojImages:
    """The tower of an `mmproj` file.

    - `sizes`: the sizes in the metadata.
    - `spec`: the vision transformer, with the parts whose tensors the file has.
    - `order`: see MmprojCheckpoint.
    """

    file: GgufFile
    sizes: MmprojVision
    spec: VisionSpec
    scheme: PositionScheme = "fixed"
    rope: AxialRope | None = None
    order: RowOrder = in_order

    @property
    def where(self) -> str:
        """The start of error messages."""
        return str(self.file.path)

    @property
    def grid(self) -> int:
        """The patches on a side of the image for which the positions are made."""
        return self.sizes.image // self.sizes.patch

    def merge(self, default: int, key: str = "projector.scale_factor") -> int:
        """Return the patches on a side of the square that becomes a row. Raises ModelError if whole
        squares do not fill an image."""
        merge = size(self.file, key, default)
        if self.grid % merge:
            raise ModelError(
                f"{self.where}: clip.vision.{key} {merge} must divide the {self.grid} patches on a"
                " side of an image"
            )
        return merge

    def layer(self, name: str, activation: VisionActivation | None = None) -> ProjectorLayer:
        """Return a linear layer of the projector with the sizes that the file has."""
        info = self.file.tensors.get(f"{name}.weight")
        if info is None or len(info.shape) != 2:
            raise ModelError(f"{self.where}: tensor {name}.weight is missing or no matrix")
        return ProjectorLayer(name, info.shape[0], f"{name}.bias" in self.file.tensors, activation)

    def media(
        self,
        projector: ProjectorSpec,
        token: str,
        tiling: Tiling,
        marking: Marking,
        most_patches: int,
        most_tiles: int = 1,
        *,
        whole: bool = False,
        lines: LearnedLines | None = None,
    ) -> MediaSpec:
        """Return the media side. `most_patches`, `most_tiles`: see ImageTowerSpec. `lines`: None:
        the rows are those of the tiles in order. Raises ModelError naming the size at fault."""
        tower = ImageTowerSpec(
            self.spec,
            self.sizes.names,
            projector,
            Normalization(self.sizes.mean, self.sizes.std),
            most_patches,
            most_tiles,
            scheme=self.scheme,
            rope=self.rope,
            arrangement=None if lines is None else lines.arrangement,
            separator="" if lines is None else lines.separator,
        )
        tower.check(self.where)
        processor = ImageProcessor(token, ROW_TOKEN, self.sizes.patch, tiling, marking, whole=whole)
        return MediaSpec(processor, (MmprojTower(tower, projector.width, self.order),))


def read_images(file: GgufFile, scheme: PositionScheme = "fixed") -> MmprojImages:
    """Read a tower with LayerNorm and learned positions, as CLIP, SigLIP and InternVL have. Raises
    ModelError naming the key or tensor at fault."""
    sizes = read_vision(file)
    positions = file.tensors.get(sizes.names.positions)
    if positions is None:
        raise ModelError(f"{file.path}: tensor {sizes.names.positions} is missing")
    tensors = file.tensors
    spec = VisionSpec(
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        intermediate_size=sizes.intermediate_size,
        layers=sizes.layers,
        patch_shape=(3, sizes.patch, sizes.patch),
        norm_eps=sizes.norm_eps,
        patch_bias="v.patch_embd.bias" in tensors,
        class_token=sizes.names.class_token in tensors,
        positions=math.prod(positions.shape[:-1]),
        embedding_norm=f"{sizes.names.embedding_norm}.weight" in tensors,
        final_norm=f"{sizes.names.final_norm}.weight" in tensors,
        qkv_bias=sizes.qkv_bias,
        mlp_bias=sizes.mlp_bias,
        qk_norm="v.blk.0.attn_q_norm.weight" in tensors,
        layer_scale="v.blk.0.ls1.weight" in tensors,
        activation=sizes.activation,
    )
    return MmprojImages(file, sizes, spec, scheme)


def read_pixtral(file: GgufFile) -> MmprojImages:
    """Read Pixtral's tower, which has RMSNorm, rotary positions and a gated feed-forward. Raises
    ModelError naming the key or tensor at fault."""
    sizes = read_vision(file)
    spec = VisionSpec(
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        intermediate_size=sizes.intermediate_size,
        layers=sizes.layers,
        patch_shape=(3, sizes.patch, sizes.patch),
        norm_eps=sizes.norm_eps,
        norm="rms",
        patch_bias=False,
        rotary_dim=sizes.head_dim,
        embedding_norm=True,
        qkv_bias=sizes.qkv_bias,
        output_bias=False,
        mlp_bias=sizes.mlp_bias,
        activation="silu_mul" if sizes.activation == "silu_mul" else "gelu_mul",
    )
    rope = AxialRope(file.real("clip.vision.rope.freq_base", 10_000.0), sizes.head_dim)
    rows = deinterleaved_rows(sizes.num_heads, sizes.head_dim, sizes.head_dim)

    def order(name: str) -> npt.NDArray[np.intp] | None:
        return rows if ".attn_q." in name or ".attn_k." in name else None

    return MmprojImages(file, sizes, spec, rope=rope, order=order)
