"""Reads Whisper-like audio encoders and their projectors from `mmproj` GGUF files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.checkpoint.renamed_checkpoint import RenamedCheckpoint
from penstock.models.configuration.mmproj import matrix_shape
from penstock.models.towers.audio_spec import AudioLayersSpec, WhisperEncoderSpec
from penstock.models.towers.mmproj_tower import MmprojTower
from penstock.models.towers.tower import MediaSpec
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.gguf.gguf_file import GgufFile

_KEY: Final = "clip.audio."
_POSITIONS: Final = "a.position_embd.weight"
_LAYER: Final = re.compile(r"a\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_LAYER_NAMES: Final = {
    "ln1": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}
"""The parts of a layer in the file -> in a folder."""
_OTHERS: Final = {
    "a.conv1d.1": "audio_tower.conv1",
    "a.conv1d.2": "audio_tower.conv2",
    "a.position_embd": "audio_tower.embed_positions",
    "a.post_ln": "audio_tower.layer_norm",
    "mm.a.fc": "multi_modal_projector.linear",
    "mm.a.mlp.1": "multi_modal_projector.linear_1",
    "mm.a.mlp.2": "multi_modal_projector.linear_2",
    "mm.a.norm_pre": "multi_modal_projector.ln_pre",
    "mm.a.norm_mid": "multi_modal_projector.ln_mid",
}


@dataclass(frozen=True, slots=True)
class AudioMmproj:
    """The encoder of an `mmproj` file."""

    file: GgufFile
    encoder: WhisperEncoderSpec

    @property
    def where(self) -> str:
        """The start of error messages."""
        return str(self.file.path)

    def matrix(self, name: str) -> tuple[int, int]:
        """Return the rows and columns of the matrix of a linear layer. Raises ModelError if it is
        missing."""
        return matrix_shape(self.file, f"{name}.weight")

    def stack(self) -> int:
        """Return the positions that become one row. Raises ModelError naming the key."""
        return _size(self.file, "projector.stack_factor")

    def media(self, spec: MediaSpec) -> MediaSpec:
        """Return the media side whose towers are read from the file. `spec`: as of a folder."""
        (tower,) = spec.towers
        width = self._width()
        return replace(spec, towers=(MmprojTower(tower, width, present=folder_names),))

    def _width(self) -> int:
        last = "mm.a.fc" if "mm.a.fc.weight" in self.file.tensors else "mm.a.mlp.2"
        return self.matrix(last)[0]


def read_audio_mmproj(file: GgufFile) -> AudioMmproj:
    """Read the sizes of the encoder. Raises ModelError naming the key or tensor at fault."""
    positions, width = matrix_shape(file, _POSITIONS)
    body = AudioLayersSpec(
        layers=_size(file, "block_count"),
        width=_size(file, "embedding_length"),
        heads=_size(file, "attention.head_count"),
        intermediate=_size(file, "feed_forward_length"),
        norm_eps=file.real(f"{_KEY}attention.layer_norm_epsilon"),
    )
    if body.width != width:
        raise ModelError(
            f"{file.path}: {_KEY}embedding_length is {body.width}, but {_POSITIONS} has {width}"
            " columns"
        )
    encoder = WhisperEncoderSpec(body, _size(file, "num_mel_bins"), positions)
    encoder.check(str(file.path))
    return AudioMmproj(file, encoder)


def folder_names(file: Checkpoint) -> Checkpoint:
    """Present an `mmproj` file with the names that a folder has."""
    return RenamedCheckpoint(file, _folder_name)


def _folder_name(name: str) -> str | None:
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        part = _LAYER_NAMES.get(layer[2])
        return None if part is None else f"audio_tower.layers.{layer[1]}.{part}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_OTHERS[stem]}.{kind}" if stem in _OTHERS else None


def _size(file: GgufFile, key: str) -> int:
    value = file.integer(_KEY + key)
    if value < 1:
        raise ModelError(f"{file.path}: {_KEY}{key} is {value}, but must be positive")
    return value
