"""Models of the shapes that are served, with random weights, written as checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model; `floor` of its decode step and of prompts follows from them."""

    name: str
    architecture: str
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    layers: int
    vocab: int
    tied: bool
    theta: float
    qk_norm: bool
    float8: bool = False

    @property
    def layer_weights(self) -> int:
        attention = self.width * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.width * self.ff

    @property
    def adapter_columns(self) -> int:
        """Inputs and outputs of all projections: the elements of an adapter of rank 1."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.width + q) + 2 * (self.width + kv)
        return self.layers * (attention + 3 * (self.width + self.ff))

    @property
    def head_weights(self) -> int:
        return self.vocab * self.width

    @property
    def step_bytes(self) -> int:
        """Weights that a decode step reads, in bfloat16, but for layers in 8 bits with a scale for
        each tile of 128 x 128."""
        return self.layer_bytes + 2 * self.head_weights

    @property
    def layer_bytes(self) -> int:
        """Of all layers."""
        count = self.layers * self.layer_weights
        return count + 4 * count // 128**2 if self.float8 else 2 * count

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token, in bfloat16."""
        return 4 * self.layers * self.kv_heads * self.head_dim

    @property
    def token_operations(self) -> int:
        """Of the products of one token, without the head."""
        return 2 * self.layers * self.layer_weights

    def small(self) -> Shape:
        """The same kind in a size for a rehearsal."""
        return replace(self, width=64, heads=4, kv_heads=2, head_dim=16, ff=96, layers=2, vocab=512)


_LLAMA = ("LlamaForCausalLM", 4096, 32, 8, 128, 14336, 32, 128256, False, 5e5, False)
_QWEN_8B = ("Qwen3ForCausalLM", 4096, 32, 8, 128, 12288, 36, 151936, False, 1e6, True)
_QWEN_06B = ("Qwen3ForCausalLM", 1024, 16, 8, 128, 3072, 28, 151936, True, 1e6, True)
SHAPES = {
    "llama-8b": Shape("llama-8b", *_LLAMA),
    "qwen3-8b": Shape("qwen3-8b", *_QWEN_8B),
    "qwen3-8b-fp8": Shape("qwen3-8b-fp8", *_QWEN_8B, float8=True),
    "qwen3-0.6b": Shape("qwen3-0.6b", *_QWEN_06B),
}


def write_checkpoint(shape: Shape, folder: Path, device: str) -> Path:
    """A folder in the Hugging Face form: bfloat16, drawn on `device`, spread so that logits are
    peaked enough to differ; with `float8` its layers in 8 bits, as DeepSeek and Qwen write them."""
    source = torch.Generator(device).manual_seed(1)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=source, device=device, dtype=torch.bfloat16)
        return drawn.mul_(scale / columns**0.5).cpu()

    ones = torch.ones(shape.width, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocab, shape.width, shape.width**0.5),
        "model.norm.weight": ones.clone(),
    }
    if not shape.tied:
        tensors["lm_head.weight"] = matrix(shape.vocab, shape.width, 3.0)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": ones.clone(),
            f"{at}post_attention_layernorm.weight": ones.clone(),
            f"{at}self_attn.q_proj.weight": matrix(q, shape.width),
            f"{at}self_attn.k_proj.weight": matrix(kv, shape.width),
            f"{at}self_attn.v_proj.weight": matrix(kv, shape.width),
            f"{at}self_attn.o_proj.weight": matrix(shape.width, q),
            f"{at}mlp.gate_proj.weight": matrix(shape.ff, shape.width),
            f"{at}mlp.up_proj.weight": matrix(shape.ff, shape.width),
            f"{at}mlp.down_proj.weight": matrix(shape.width, shape.ff),
        }
        if shape.qk_norm:
            head = torch.ones(shape.head_dim, dtype=torch.bfloat16)
            tensors[f"{at}self_attn.q_norm.weight"] = head
            tensors[f"{at}self_attn.k_norm.weight"] = head.clone()
    if shape.float8:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            codes, scale = float8_tiles(tensors[name].to(device))
            tensors |= {name: codes.cpu(), f"{name}_scale_inv": scale.cpu()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    return folder


def float8_tiles(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and the scale of each tile of 128 x 128."""
    (rows, columns), tile = weight.shape, 128
    grid = (-(-rows // tile), -(-columns // tile))
    whole = torch.zeros(grid[0] * tile, grid[1] * tile, device=weight.device)
    whole[:rows, :columns] = weight
    tiles = whole.view(grid[0], tile, grid[1], tile)
    scale = tiles.abs().amax(dim=(1, 3)).clamp_min(1e-12) / 448
    codes = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn).view_as(whole)
    return codes[:rows, :columns].contiguous(), scale


def _config(shape: Shape) -> dict[str, Any]:
    quantized = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    return ({"quantization_config": quantized} if shape.float8 else {}) | {
        "architectures": [shape.architecture],
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.ff,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": shape.theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
