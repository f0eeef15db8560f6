"""Opens the decoder in a Hugging Face folder: its spec, and the names and the layout of its
tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from penstock.models.checkpoint.equal_matrices import equal_matrices
from penstock.models.checkpoint.gpt_oss_checkpoint import (
    FUSED_EXPERTS,
    FUSED_GATE_UP,
    GateUpOrder,
    GptOssCheckpoint,
)
from penstock.models.checkpoint.renamed_checkpoint import RenamedCheckpoint
from penstock.models.configuration.text_backbone import text_backbone_names
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import (
    MLX_EXPERTS,
    TensorNames,
    mlx_names,
    stacked_names,
)
from penstock.models.families import registry
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class FolderDecoder:
    """The decoder in a folder.

    - `checkpoint`: the tensors as they are stored, under the names that its families know.
    - `unfused`: the same with experts that are split as in other models.
    - `container`: the multimodal architecture of which it is the language model, or None.
    """

    spec: DecoderSpec
    names: TensorNames
    checkpoint: Checkpoint
    unfused: Checkpoint
    container: str | None


def open_folder_decoder(folder: Path, float8: Float8Storage) -> FolderDecoder:
    """Open the decoder in a folder. `float8`: the type as which matrices of 8-bit floats are read.
    Raises ModelError naming file and key or tensor."""
    spec = registry.spec_of_folder(folder)
    container = registry.multimodal_architecture_of_folder(folder)
    checkpoint = open_checkpoint(folder, float8)
    name_of = registry.tensor_renaming(spec, container)
    if name_of is not None:
        checkpoint = RenamedCheckpoint(checkpoint, name_of)
    names = folder_names(spec, checkpoint, container)
    spec = _resolve_tied_head(spec, checkpoint, names)
    return FolderDecoder(spec, names, checkpoint, unfuse_experts(checkpoint, spec), container)


def _resolve_tied_head(
    spec: DecoderSpec, checkpoint: Checkpoint, names: TensorNames
) -> DecoderSpec:
    """Return `spec` with `tied_head` corrected: if the config ties the head to the embedding, but
    the checkpoint has two different matrices, the head is not tied."""
    both = [f"{name}.weight" for name in (names.embedding, names.head)]
    shapes = [checkpoint.tensors[name].shape for name in both if name in checkpoint.tensors]
    if not spec.tied_head or shapes != [(spec.vocab_size, spec.hidden_size)] * 2:
        return spec
    embedding, head = map(checkpoint.matrix, both)
    return replace(spec, tied_head=equal_matrices(embedding, head))


def folder_names(spec: DecoderSpec, checkpoint: Checkpoint, container: str | None) -> TensorNames:
    """Return the names of the tensors in a checkpoint. `container`: the multimodal architecture, or
    None."""
    names = registry.hf_names(spec)
    if any(f".{MLX_EXPERTS}" in name for name in checkpoint.tensors):
        names = mlx_names(names)
    elif _has_fused_experts(checkpoint):
        names = stacked_names(names, FUSED_EXPERTS)
    return names if container is None else text_backbone_names(names, checkpoint.tensors)


def unfuse_experts(checkpoint: Checkpoint, spec: DecoderSpec) -> Checkpoint:
    """Return the checkpoint with fused experts split as in other models. In gpt-oss, gates and ups
    alternate."""
    if not _has_fused_experts(checkpoint):
        return checkpoint
    mixtures = {layer.experts for layer in spec.layers} - {None}
    alternate = any(
        mixture is not None and mixture.activation == "swiglu_oai" for mixture in mixtures
    )
    order: GateUpOrder = "alternating" if alternate else "halves"
    return GptOssCheckpoint(checkpoint, spec.hidden_size, order)


def _has_fused_experts(checkpoint: Checkpoint) -> bool:
    return any(name.removesuffix(".weight").endswith(FUSED_GATE_UP) for name in checkpoint.tensors)
