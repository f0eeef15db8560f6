"""Reads the metadata and names of `mmproj` GGUF files: the towers of multimodal models, as
llama.cpp's converter writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.towers.vision_spec import VisionActivation
from penstock.models.towers.vision_weights import VisionNames
from penstock.quant.gguf.gguf_file import GgufFile

ARCHITECTURE: Final = "clip"
_KEY: Final = "clip.vision."
_LAYER: Final = "v.blk.0."


@dataclass(frozen=True, slots=True)
class MmprojVision:
    """The sizes of a vision transformer in an `mmproj` file.

    - `patch`, `image`: pixels of a side of a patch and of the image.
    - `activation`: of a feed-forward without gate, if the family has no fixed one.
    - `qkv_bias`, `mlp_bias`: whether the file has these biases.
    """

    hidden_size: int
    num_heads: int
    layers: int
    intermediate_size: int
    patch: int
    image: int
    norm_eps: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    activation: VisionActivation
    names: VisionNames
    qkv_bias: bool
    mlp_bias: bool

    @property
    def head_dim(self) -> int:
        """The number of elements of one attention head."""
        return self.hidden_size // self.num_heads


def projector_of(file: GgufFile) -> str:
    """Return the type of the projector, which selects the family. Raises ModelError if the file is
    no `mmproj` file."""
    architecture = file.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise ModelError(
            f"{file.path}: general.architecture is {architecture}, but an mmproj file has"
            f" {ARCHITECTURE}"
        )
    keys = ("clip.vision.projector_type", "clip.projector_type", "clip.audio.projector_type")
    found = (key for key in keys if key in file.metadata)
    return file.text(next(found, keys[1]))


def read_vision(file: GgufFile) -> MmprojVision:
    """Read the sizes of the vision transformer. Raises ModelError naming the key or tensor at
    fault."""
    names = vision_names(file)
    hidden = size(file, "embedding_length")
    heads = size(file, "attention.head_count")
    return MmprojVision(
        hidden_size=hidden,
        num_heads=heads,
        layers=size(file, "block_count"),
        # Some converters wrote the text model's size as feed_forward_length.
        intermediate_size=matrix_shape(file, f"{_LAYER}{names.up[0]}.weight")[0],
        patch=size(file, "patch_size"),
        image=size(file, "image_size"),
        norm_eps=file.real(f"{_KEY}attention.layer_norm_epsilon"),
        mean=_channels(file, "image_mean"),
        std=_channels(file, "image_std"),
        activation=_activation(file),
        names=names,
        qkv_bias=f"{_LAYER}{names.qkv[0]}.bias" in file.tensors,
        mlp_bias=f"{_LAYER}{names.down}.bias" in file.tensors,
    )


def size(file: GgufFile, key: str, default: int | None = None) -> int:
    """Return a positive integer under `clip.vision.`, or `default` if the key is absent. Raises
    ModelError naming the key."""
    value = file.integer(_KEY + key, default)
    if value < 1:
        raise ModelError(f"{file.path}: {_KEY}{key} is {value}, but must be positive")
    return value


def vision_names(file: GgufFile) -> VisionNames:
    """Return the names of the vision transformer's tensors. q, k and v may be fused, the
    feed-forward may be gated, and old files have the names of its matrices swapped."""
    fused = f"{_LAYER}attn_qkv.weight" in file.tensors
    gated = f"{_LAYER}ffn_gate.weight" in file.tensors
    up, down = "ffn_up", "ffn_down"
    if not gated and matrix_shape(file, f"{_LAYER}ffn_up.weight")[1] != size(
        file, "embedding_length"
    ):
        up, down = down, up
    return VisionNames(
        roots=("",),
        patch="v.patch_embd",
        layer="v.blk.{}.",
        attention_norm="ln1",
        qkv=("attn_qkv",) if fused else ("attn_q", "attn_k", "attn_v"),
        output="attn_out",
        mlp_norm="ln2",
        up=("ffn_gate", up) if gated else (up,),
        down=down,
        class_token="v.class_embd",
        positions="v.position_embd.weight",
        embedding_norm="v.pre_ln",
        final_norm="v.post_ln",
        q_norm="attn_q_norm",
        k_norm="attn_k_norm",
        attention_scale="ls1.weight",
        mlp_scale="ls2.weight",
    )


def _activation(file: GgufFile) -> VisionActivation:
    # llama.cpp computes GELU by its tanh approximation, and without a flag x sigmoid(1.702 x).
    if file.boolean("clip.use_silu"):
        return "silu_mul"
    return "gelu_tanh" if file.boolean("clip.use_gelu") else "quick_gelu"


def _channels(file: GgufFile, key: str) -> tuple[float, float, float]:
    values = [float(value) for value in file.numbers(_KEY + key)]
    if len(values) != 3 or (key == "image_std" and min(values) <= 0):
        raise ModelError(f"{file.path}: {_KEY}{key}: {values}, expected three numbers")
    return values[0], values[1], values[2]


def matrix_shape(file: GgufFile, name: str) -> tuple[int, int]:
    """Return the rows and columns of a matrix. Raises ModelError if it is missing or no matrix."""
    info = file.tensors.get(name)
    if info is None:
        raise ModelError(f"{file.path}: tensor {name} is missing")
    if len(info.shape) != 2:
        raise ModelError(f"{file.path}: tensor {name} has shape {info.shape}, expected a matrix")
    return info.shape[0], info.shape[1]
