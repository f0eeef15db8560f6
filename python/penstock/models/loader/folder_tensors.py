"""The names and the layout of a decoder's tensors in a Hugging Face folder."""

from __future__ import annotations

from penstock.models.checkpoint.gpt_oss_checkpoint import (
    FUSED_EXPERTS,
    FUSED_GATE_UP,
    GptOssCheckpoint,
    expert_layout,
)
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
    if any(mixture is not None and mixture.activation == "swiglu_oai" for mixture in mixtures):
        return GptOssCheckpoint(checkpoint)
    return GptOssCheckpoint(checkpoint, expert_layout(checkpoint, spec.hidden_size))


def _has_fused_experts(checkpoint: Checkpoint) -> bool:
    return any(name.endswith(FUSED_GATE_UP) for name in checkpoint.tensors)
