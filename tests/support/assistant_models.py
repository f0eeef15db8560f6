"""Small random Gemma 4 models with assistants, and the draft tokens of transformers' modules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers

VOCAB = 64
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "hidden_size_per_layer_input": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EFFECTIVE = {
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
    "num_kv_shared_layers": 2,
}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
CENTROIDS = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "e2b": ("Gemma4", EFFECTIVE, CENTROIDS),
    "31b": ("Gemma4", KEYS_AS_VALUES | {"final_logit_softcapping": 3.0}, {}),
    "unified": ("Gemma4Unified", KEYS_AS_VALUES, {}),
}
"""Name of a case -> (prefix of transformers' classes, further keys of the target's config, and of
the assistant's)."""


@dataclass
class AssistedModel:
    """A target and its assistant, as float32 modules of transformers."""

    target: Any
    assistant: Any

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write both. Return their folders."""
        self.target.save_pretrained(folder / "target")
        self.assistant.save_pretrained(folder / "assistant")
        return folder / "target", folder / "assistant"

    @property
    def assistant_decoder(self) -> SimpleNamespace:
        """The assistant with the config of its decoder."""
        config = self.assistant.config.get_text_config()
        return SimpleNamespace(config=config, state_dict=self.assistant.state_dict)

    @torch.no_grad()
    def drafts(self, known: list[int], count: int) -> list[int]:
        """Return the draft tokens after `known`, of which the target has computed all but the
        last."""
        seen = torch.tensor([known[:-1]])
        computed = self.target.model(seen, return_shared_kv_states=True)
        state = computed.last_hidden_state[:, -1:]
        tokens = known[-1:]
        for _ in range(count):
            embedded = self.target.get_input_embeddings()(torch.tensor([tokens[-1:]]))
            found = self.assistant(
                inputs_embeds=torch.cat([embedded, state], -1),
                position_ids=torch.tensor([[len(known) - 1]]),
                shared_kv_states=computed.shared_kv_states,
            )
            state = found.last_hidden_state
            tokens.append(int(found.logits[0, -1].argmax()))
        return tokens[1:]


def assisted_model(case: str, **options: Any) -> AssistedModel:
    """Return the models of a case. `options` override keys of the assistant's text config."""
    name, own, head = CASES[case]
    text_config = getattr(transformers, f"{name}TextConfig")
    target_config = text_config(**(TEXT | own))
    inner = {"hidden_size": 32, "num_hidden_layers": 4, "layer_types": TEXT["layer_types"][:4]}
    inner |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    inner |= {"num_kv_shared_layers": 4, "final_logit_softcapping": None}
    config = getattr(transformers, f"{name}AssistantConfig")(
        text_config=text_config(**(TEXT | own | inner | options)),
        backbone_hidden_size=TEXT["hidden_size"],
        **head,
    )
    torch.manual_seed(0)
    models = (
        getattr(transformers, f"{name}ForCausalLM")(target_config).float().eval(),
        getattr(transformers, f"{name}AssistantForCausalLM")(config).float().eval(),
    )
    for model in models:
        model.set_attn_implementation("eager")
        _randomize(model)
    return AssistedModel(*models)


@torch.no_grad()
def _randomize(model: Any) -> None:
    for parameter in model.parameters():
        parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.normal_(0.8, 0.1)
        elif name.endswith("token_ordering"):
            order = np.random.default_rng(0).permutation(len(buffer))
            buffer.copy_(torch.from_numpy(order))
