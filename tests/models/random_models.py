"""Small models of transformers with random weights, and their logits."""

from __future__ import annotations

from typing import Any

import torch
import transformers

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def random_model(name: str, options: dict[str, Any]) -> Any:
    """Return a float32 model with weights large enough to expose errors. Buffers, like the biases
    of routers, are random too."""
    config = getattr(transformers, f"{name}Config")(**(SMALL | options))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return randomize(getattr(transformers, f"{name}ForCausalLM")(config).float().eval())


@torch.no_grad()
def randomize(model: Any) -> Any:
    """Draw all weights and buffers of `model` except the frequencies of rotations, and return
    it."""
    for key, values in model.state_dict().items():
        if values.ndim and not key.endswith("inv_freq"):
            norm = key.endswith("norm.weight") and values.ndim == 1
            values.normal_(1.0 if norm else 0.0, 0.15)
    return model


@torch.no_grad()
def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Return the logits [T, V] of the model."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits
