"""Models in the shapes that are served, with random weights, written as checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, from which the floors of prefill and decode follow. With `experts` each
    feed-forward is a mixture: a token uses `per_token` experts of width `ff`."""

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
    experts: int = 0
    per_token: int = 0
    float8: bool = False

    @property
    def attention_weights(self) -> int:
        """Weights of a layer's attention, including the router of its experts."""
        projections = self.width * self.head_dim * 2 * (self.heads + self.kv_heads)
        return projections + self.experts * self.width

    @property
    def expert_weights(self) -> int:
        """Weights of one expert."""
        return 3 * self.width * self.ff

    @property
    def token_layer_weights(self) -> int:
        """Weights of a layer that one token uses."""
        return self.attention_weights + max(self.per_token, 1) * self.expert_weights

    def layer_weights(self, tokens: float) -> float:
        """Return the weights of a layer that a step of `tokens` tokens reads. Experts count with
        the expected number that the tokens use, if all are equally likely."""
        touched = 1.0
        if self.experts:
            missed = (1 - self.per_token / self.experts) ** tokens
            touched = self.experts * (1 - missed)
        return self.attention_weights + touched * self.expert_weights

    @property
    def adapter_columns(self) -> int:
        """Inputs and outputs of all projections: the elements of an adapter of rank 1."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.width + q) + 2 * (self.width + kv)
        return self.layers * (attention + 3 * (self.width + self.ff))

    @property
    def head_weights(self) -> int:
        return self.vocab * self.width

    def step_bytes(self, tokens: float) -> float:
        """Return the bytes of weights that a decode step of `tokens` rows reads: bfloat16, or 8
        bits with one scale per tile of 128 x 128 for float8 layers."""
        return self.layer_bytes(tokens) + 2 * self.head_weights

    def layer_bytes(self, tokens: float) -> float:
        """Return the bytes of all layers' weights that a step reads."""
        count = self.layers * self.layer_weights(tokens)
        return count + 4 * count / 128**2 if self.float8 else 2 * count

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values, in bfloat16."""
        return 4 * self.layers * self.kv_heads * self.head_dim

    @property
    def row_bytes(self) -> float:
        """Bytes of recurrent states that a step moves for each row: there are none."""
        return 0.0

    @property
    def token_operations(self) -> int:
        """Operations of one token's products, without the head."""
        return 2 * self.layers * self.token_layer_weights

    def small(self) -> Shape:
        """Return a small model of the same kind, for a rehearsal."""
        small = replace(
            self, width=64, heads=4, kv_heads=2, head_dim=16, ff=96, layers=2, vocab=512
        )
        return replace(small, experts=8, per_token=2, ff=32) if self.experts else small


_LLAMA = ("LlamaForCausalLM", 4096, 32, 8, 128, 14336, 32, 128256, False, 5e5, False)
_QWEN_8B = ("Qwen3ForCausalLM", 4096, 32, 8, 128, 12288, 36, 151936, False, 1e6, True)
_QWEN_06B = ("Qwen3ForCausalLM", 1024, 16, 8, 128, 3072, 28, 151936, True, 1e6, True)
_QWEN_30B = ("Qwen3MoeForCausalLM", 2048, 32, 4, 128, 768, 48, 151936, False, 1e6, True, 128, 8)
SHAPES = {
    "llama-8b": Shape("llama-8b", *_LLAMA),
    "qwen3-8b": Shape("qwen3-8b", *_QWEN_8B),
    "qwen3-8b-fp8": Shape("qwen3-8b-fp8", *_QWEN_8B, float8=True),
    "qwen3-0.6b": Shape("qwen3-0.6b", *_QWEN_06B),
    "qwen3-30b-a3b": Shape("qwen3-30b-a3b", *_QWEN_30B),
}


def write_checkpoint(shape: Shape, folder: Path, device: str) -> Path:
    """Write a Hugging Face checkpoint with random bfloat16 weights, generated on `device`.

    The weights are scaled so that logits are peaked enough to differ. With `float8` the layers have
    8 bits, in the format of DeepSeek and Qwen. Each layer is one file, so that only one is in
    memory at a time.
    """
    source = torch.Generator(device).manual_seed(1)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=source, device=device, dtype=torch.bfloat16)
        return values.mul_(scale / columns**0.5).cpu()

    ones = torch.ones(shape.width, dtype=torch.bfloat16)
    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocab, shape.width, shape.width**0.5),
        "model.norm.weight": ones.clone(),
    }
    if not shape.tied:
        tensors["lm_head.weight"] = matrix(shape.vocab, shape.width, 3.0)
    files = {"model-ends.safetensors": list(tensors)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model-ends.safetensors", metadata={"format": "pt"})
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        tensors = {
            f"{at}input_layernorm.weight": ones.clone(),
            f"{at}post_attention_layernorm.weight": ones.clone(),
            f"{at}self_attn.q_proj.weight": matrix(q, shape.width),
            f"{at}self_attn.k_proj.weight": matrix(kv, shape.width),
            f"{at}self_attn.v_proj.weight": matrix(kv, shape.width),
            f"{at}self_attn.o_proj.weight": matrix(shape.width, q),
        }
        blocks = [f"{at}mlp."]
        if shape.experts:
            tensors[f"{at}mlp.gate.weight"] = matrix(shape.experts, shape.width)
            blocks = [f"{at}mlp.experts.{expert}." for expert in range(shape.experts)]
        for block in blocks:
            tensors |= {
                f"{block}gate_proj.weight": matrix(shape.ff, shape.width),
                f"{block}up_proj.weight": matrix(shape.ff, shape.width),
                f"{block}down_proj.weight": matrix(shape.width, shape.ff),
            }
        if shape.qk_norm:
            head = torch.ones(shape.head_dim, dtype=torch.bfloat16)
            tensors[f"{at}self_attn.q_norm.weight"] = head
            tensors[f"{at}self_attn.k_norm.weight"] = head.clone()
        if shape.float8:
            for name in [name for name in tensors if name.endswith("_proj.weight")]:
                codes, scale = float8_tiles(tensors[name].to(device))
                tensors |= {name: codes.cpu(), f"{name}_scale_inv": scale.cpu()}
        files[f"model-{layer:03}.safetensors"] = list(tensors)
        save_file(tensors, folder / f"model-{layer:03}.safetensors", metadata={"format": "pt"})
    weight_map = {name: file for file, names in files.items() for name in names}
    index = folder / "model.safetensors.index.json"
    size = sum((folder / file).stat().st_size for file in files)
    index.write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    return folder


def float8_tiles(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes and the scale of each tile of 128 x 128."""
    (rows, columns), tile = weight.shape, 128
    grid = (-(-rows // tile), -(-columns // tile))
    whole = torch.zeros(grid[0] * tile, grid[1] * tile, device=weight.device)
    whole[:rows, :columns] = weight
    tiles = whole.view(grid[0], tile, grid[1], tile)
    scale = tiles.abs().amax(dim=(1, 3)).clamp_min(1e-12) / 448
    codes = (tiles / scale[:, None, :, None]).to(torch.float8_e4m3fn).view_as(whole)
    return codes[:rows, :columns].contiguous(), scale


def config_of(shape: Shape) -> dict[str, Any]:
    """Return the content of `config.json`."""
    quantized = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    experts = {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.per_token,
        "moe_intermediate_size": shape.ff,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    model_type = "qwen3_moe" if shape.experts else "qwen3" if shape.qk_norm else "llama"
    return {
        **({"quantization_config": quantized} if shape.float8 else {}),
        **(experts if shape.experts else {}),
        "architectures": [shape.architecture],
        "model_type": model_type,
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
