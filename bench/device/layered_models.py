"""Models whose layers differ, in published sizes with random weights: a hybrid and one with latent
attention. Their floors follow from their configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from bench.layered_shapes import (
    GLM47_FLASH_4_LAYERS,
    GLM47_VOCABULARY,
    QWEN35_2B,
    QWEN35_VOCABULARY,
)
from penstock.kernels.recurrent_state import STATE_TILE, StateShape
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.families.registry import hf_names, spec_of_folder

_ENDS = ("embed_tokens", "lm_head")


@dataclass(frozen=True)
class LayeredShape:
    """A model by the content of its `config.json`. It has the floors of `model_shapes.Shape`.
    `has_mtp`: its checkpoint has an MTP head, which the floors do not count."""

    name: str
    config: Mapping[str, Any]
    has_mtp: bool = False

    @cached_property
    def spec(self) -> DecoderSpec:
        """The configuration as Penstock reads it."""
        with TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(self.config))
            return spec_of_folder(Path(folder))

    @property
    def width(self) -> int:
        return self.spec.hidden_size

    @property
    def layers(self) -> int:
        return len(self.spec.layers)

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return self._experts[0]

    @cached_property
    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each tensor of the checkpoint."""
        return expected_shapes(hf_names(self.spec), self.spec)

    @property
    def head_weights(self) -> int:
        return self.spec.vocab_size * self.width

    def step_bytes(self, tokens: float) -> float:
        """Return the bytes of bfloat16 weights that a decode step of `tokens` rows reads."""
        return self.layer_bytes(tokens) + 2 * self.head_weights

    def layer_bytes(self, tokens: float) -> float:
        """Return the bytes of all layers' weights that a step reads. Experts count with the
        expected number that the tokens use, if all are equally likely."""
        count, used = self._experts
        touched = 1 - (1 - used / count) ** tokens if count else 0.0
        return 2 * (self._weights(experts=False) + touched * self._weights(experts=True))

    @property
    def token_operations(self) -> int:
        """Operations of one token's products, without the head. Scans are not counted."""
        count, used = self._experts
        routed = self._weights(experts=True) * used // count if count else 0
        return 2 * (self._weights(experts=False) + routed)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's KV cache, in bfloat16. Values of latents are parts of their keys."""
        return 2 * sum(size.shared_elements for size in self.spec.caches if size is not None)

    @property
    def row_bytes(self) -> float:
        """Bytes of recurrent states that a decode step moves for each row: matrices are read in
        each step and written once per tile; pending tokens are read and one is written; the inputs
        of convolutions are read and one is written."""
        return sum(map(_moved_bytes, filter(None, self.spec.states)))

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of one snapshot of the recurrent states."""
        return 4 * sum(state.snapshot_floats for state in self.spec.states if state is not None)

    def small(self) -> LayeredShape:
        """Return a small model of the same kind, for a rehearsal."""
        return replace(self, config={**self.config, **_SMALL[str(self.config["model_type"])]})

    @property
    def _experts(self) -> tuple[int, int]:
        """Experts of a layer, and experts that each token uses."""
        mixtures = {layer.experts for layer in self.spec.layers} - {None}
        for experts in mixtures:
            assert experts is not None
            return experts.count, experts.routing.top_k
        return 0, 0

    def _weights(self, *, experts: bool) -> int:
        """Return the number of weights in the matrices of layers, of experts or of the rest."""
        sizes = (
            torch.Size(shape).numel()
            for name, shape in self.tensors.items()
            if len(shape) > 1 and not any(end in name for end in _ENDS)
            if (".experts." in name) == experts
        )
        return sum(sizes)


def _moved_bytes(state: StateShape) -> float:
    matrix = state.heads * state.key_dim * state.value_dim
    pending = state.groups * state.key_dim + state.heads * (state.value_dim + 1)
    # On average half a tile is pending.
    moved = matrix * (1 + 1 / STATE_TILE) + pending * (STATE_TILE / 2 + 1)
    return 4 * (moved + state.channels * state.taps)


def _mtp_tensors(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the MTP head of a model, without those of the model."""
    names = hf_names(spec)
    mtp = names.mtp
    assert mtp is not None and spec.mtp is not None, "models of this kind have no MTP head"
    root = mtp.root or names.layer.format(len(spec.layers))
    norm, width = f"{root}{mtp.norm}".removesuffix(".weight"), spec.hidden_size
    named = replace(names, layer=f"{root}{mtp.layer}", final_norm=norm)
    shapes = expected_shapes(named, mtp_decoder(spec))
    shapes = {name: shape for name, shape in shapes.items() if name.startswith(root)}
    shapes[f"{root}{mtp.fc}"] = (width, 2 * width)
    return shapes | {f"{root}{name}": (width,) for name in (mtp.embedding_norm, mtp.hidden_norm)}


def write_layered_checkpoint(shape: LayeredShape, folder: Path, device: str) -> Path:
    """Write a Hugging Face checkpoint with random bfloat16 weights, generated on `device`. Logits
    are peaked enough to differ, and states decay slowly. Each layer is one file."""
    source = torch.Generator(device).manual_seed(1)
    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    shapes = {**shape.tensors, **(_mtp_tensors(shape.spec) if shape.has_mtp else {})}
    for number, names in enumerate(_files(shapes)):
        tensors = {
            name: _values(name, shapes[name], source, device).to(torch.bfloat16).cpu()
            for name in names
        }
        file = f"model-{number:03}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(shape.config))
    return folder


def _files(shapes: Mapping[str, tuple[int, ...]]) -> Iterator[list[str]]:
    """Yield the names of the tensors of each file."""
    parts: dict[str, list[str]] = {}
    for name in shapes:
        _, _, layer = name.partition(".layers.")
        parts.setdefault(layer.partition(".")[0], []).append(name)
    yield from parts.values()


def _values(
    name: str, shape: tuple[int, ...], source: torch.Generator, device: str
) -> torch.Tensor:
    """Return random values like those of a trained model."""
    values = torch.randn(shape, generator=source, device=device)
    if name.endswith("A_log"):
        return values / 2 - 1
    if name.endswith("dt_bias"):
        return values / 2 - 2
    if len(shape) == 1:
        return values.mul_(0.1).add_(0 if "bias" in name else 1)
    if "embed_tokens" in name:
        return values
    return values.mul_((3.0 if "lm_head" in name else 1.0) / math.sqrt(shape[-1]))


_COMMON = {
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _qwen35(keys: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Return the `config.json` of a Qwen3.5 with these metadata."""
    layers, interval = keys["block_count"], keys["full_attention_interval"]
    kinds = ("linear_attention", "full_attention")
    return {
        **_COMMON,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": vocabulary,
        "hidden_size": keys["embedding_length"],
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys["attention.head_count_kv"],
        "head_dim": keys["attention.key_length"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": True,
        "layer_types": [kinds[(index + 1) % interval == 0] for index in range(layers)],
        "linear_conv_kernel_dim": keys["ssm.conv_kernel"],
        "linear_num_key_heads": keys["ssm.group_count"],
        "linear_num_value_heads": keys["ssm.time_step_rank"],
        "linear_key_head_dim": keys["ssm.state_size"],
        "linear_value_head_dim": keys["ssm.inner_size"] // keys["ssm.time_step_rank"],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": keys["rope.freq_base"],
            "partial_rotary_factor": keys["rope.dimension_count"] / keys["attention.key_length"],
            "mrope_section": keys["rope.dimension_sections"][:3],
            "mrope_interleaved": True,
        },
    }


def _glm_lite(keys: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Return the `config.json` of a GLM-4.7-Flash with these metadata."""
    layers, dense = keys["block_count"], keys["leading_dense_block_count"]
    rotated = keys["rope.dimension_count"]
    return {
        **_COMMON,
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "model_type": "glm4_moe_lite",
        "vocab_size": vocabulary,
        "hidden_size": keys["embedding_length"],
        "intermediate_size": keys["feed_forward_length"],
        "num_hidden_layers": layers,
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys["attention.head_count"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": False,
        "q_lora_rank": keys["attention.q_lora_rank"],
        "kv_lora_rank": keys["attention.kv_lora_rank"],
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys["attention.key_length_mla"] - rotated,
        "v_head_dim": keys["attention.value_length_mla"],
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense),
        "n_routed_experts": keys["expert_count"],
        "num_experts_per_tok": keys["expert_used_count"],
        "n_shared_experts": keys["expert_shared_count"],
        "moe_intermediate_size": keys["expert_feed_forward_length"],
        "routed_scaling_factor": keys["expert_weights_scale"],
        "norm_topk_prob": keys["expert_weights_norm"],
        "n_group": 1,
        "topk_group": 1,
        "rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": keys["rope.freq_base"]},
    }


_SMALL: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    },
    "glm4_moe_lite": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "mlp_layer_types": ["dense", "sparse"],
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 24,
        "v_head_dim": 40,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
LAYERED = {
    shape.name: shape
    for shape in (
        LayeredShape("qwen3.5-2b", _qwen35(QWEN35_2B, QWEN35_VOCABULARY)),
        LayeredShape("glm-4.7-flash-4-layers", _glm_lite(GLM47_FLASH_4_LAYERS, GLM47_VOCABULARY)),
    )
}
