"""Small models with a random MTP head, and the head's results in PyTorch.

The layer and the last norm of the head are those of a model of one layer of the same family, and
its input is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hybrid_models
import numpy as np
import random_models
import torch
from gguf_expert_export import export_experts, model_tensors
from gguf_hybrid_export import convert
from safetensors.numpy import load_file, save_file

MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 40,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
}
GLM = {
    "head_dim": 16,
    "use_qk_norm": True,
    "attention_bias": True,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LAYERS = {"layer_types": [*["linear_attention"] * 3, "full_attention"]}
TURNED = hybrid_models.DELTA | LAYERS
PLAIN = hybrid_models.PLAIN_DELTA | LAYERS
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "qwen3.5": ("Qwen3_5", TURNED),
    "qwen3.5 moe": ("Qwen3_5Moe", TURNED | hybrid_models.EXPERTS),
    "qwen3 next": ("Qwen3Next", PLAIN | hybrid_models.EXPERTS),
    "glm4 moe": ("Glm4Moe", GLM),
    "glm4 moe lite": ("Glm4MoeLite", MLA | {"num_nextn_predict_layers": 1}),
    "deepseek v3": ("DeepseekV3", MLA | {"first_k_dense_replace": 1, "n_group": 4}),
}
_QWEN_NAMES = {
    "fc": "mtp.fc.weight",
    "embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "hidden_norm": "mtp.pre_fc_norm_hidden.weight",
}
_NEXTN_NAMES = {"fc": "eh_proj.weight", "embedding_norm": "enorm.weight"}
_NEXTN_NAMES |= {"hidden_norm": "hnorm.weight"}


@dataclass
class MtpModel:
    """A model and its MTP head. `parts`: the tensors before the layer, by role. `layer`: the model
    of one layer. `own_ends`: the head has an embedding and a language-model head of its own."""

    target: Any
    layer: Any
    parts: dict[str, torch.Tensor]
    own_ends: bool = False

    @property
    def is_qwen(self) -> bool:
        return bool(self.target.config.model_type.startswith("qwen"))

    @torch.no_grad()
    def hidden(self, tokens: list[int]) -> torch.Tensor:
        """Return the final hidden states of the model: [T, W]."""
        states: torch.Tensor = self.target.model(torch.tensor([tokens])).last_hidden_state[0]
        return states

    @torch.no_grad()
    def head(self, next_tokens: list[int], hidden: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the logits and the final hidden states of the head, at all positions."""
        ends = self.layer if self.own_ends else self.target
        embedded = ends.model.embed_tokens(torch.tensor(next_tokens))
        joined = [self._norm("embedding_norm", embedded), self._norm("hidden_norm", hidden)]
        start = torch.cat(joined, -1) @ self.parts["fc"].T
        states = self.layer.model(inputs_embeds=start[None]).last_hidden_state[0]
        return ends.lm_head(states), states

    def _norm(self, role: str, x: torch.Tensor) -> torch.Tensor:
        eps, weight = self.target.config.rms_norm_eps, self.parts[role]
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return scaled * (weight + 1 if self.is_qwen else weight)

    def save(self, folder: Path) -> None:
        """Write the model and its head as published folders have them."""
        self.target.save_pretrained(folder)
        self.layer.save_pretrained(folder / "layer")
        layers = self.target.config.num_hidden_layers
        prefix = f"model.layers.{layers}."
        names = {**_NEXTN_NAMES, "norm": "shared_head.norm.weight"}
        names = {role: prefix + name for role, name in names.items()}
        own = {"embed_tokens": "embed_tokens.weight", "lm_head": "shared_head.head.weight"}
        if self.is_qwen:
            prefix, names = "mtp.layers.0.", _QWEN_NAMES | {"norm": "mtp.norm.weight"}
        further = {names[role]: values.numpy() for role, values in self.parts.items()}
        for name, values in load_file(folder / "layer" / "model.safetensors").items():
            if name.startswith("model.layers.0."):
                further[prefix + name.removeprefix("model.layers.0.")] = values
            elif name == "model.norm.weight":
                further[names["norm"]] = values
            elif self.own_ends:
                further[prefix + own[name.removeprefix("model.").removesuffix(".weight")]] = values
        path = folder / "model.safetensors"
        save_file(load_file(path) | further, path, {"format": "pt"})

    def export(self, folder: Path, path: Path) -> None:
        """Write the model and its head as GGUF. `folder`: a folder that `save` has written."""
        if self.is_qwen:
            convert(folder, path, mtp_layers=1)
            return
        layers = self.target.config.num_hidden_layers
        further: dict[str, np.ndarray] = {
            f"blk.{layers}.nextn.{_NEXTN_NAMES[role]}": values.numpy()
            for role, values in self.parts.items()
        }
        for name, values in model_tensors(self.layer).items():
            if name.startswith("blk.0."):
                further[f"blk.{layers}.{name.removeprefix('blk.0.')}"] = values
            elif name == "output_norm.weight":
                further[f"blk.{layers}.nextn.shared_head_norm.weight"] = values
            elif self.own_ends:
                own = {"output.weight": "shared_head_head", "token_embd.weight": "embed_tokens"}
                further[f"blk.{layers}.nextn.{own[name]}.weight"] = values
        arch = {"glm4_moe": "glm4moe"}.get(self.target.config.model_type, "deepseek2")
        keys = {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
        export_experts(self.target, path, extra_tensors=further, extra_keys=keys)


def mtp_model(case: str, own_ends: bool = False, vocab: int = 64) -> MtpModel:
    """Return the model of a case."""
    name, options = CASES[case]
    hybrid = name.startswith("Qwen")
    build = hybrid_models.build if hybrid else random_models.random_model
    sizes = {"vocab_size": vocab}
    target = build(name, dict(options) | sizes)
    single: dict[str, Any] = {"num_hidden_layers": 1, "first_k_dense_replace": 0}
    if hybrid:
        single = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    if name == "Glm4MoeLite":
        single["mlp_layer_types"] = ["sparse"]
    layer = build(name, dict(options) | sizes | single)
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():  # not the numbers of the model
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    width = target.config.hidden_size
    parts = {
        "fc": 0.15 * torch.randn((width, 2 * width), generator=generator),
        "embedding_norm": 1 + 0.2 * torch.randn(width, generator=generator),
        "hidden_norm": 1 + 0.2 * torch.randn(width, generator=generator),
    }
    return MtpModel(target, layer, parts, own_ends)
