"""A config.json of a hybrid model that has only its sizes means what `transformers` reads in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from penstock.models.families.registry import spec_of_folder

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 128,
}
WITHOUT_SIZES: dict[str, dict[str, Any]] = {
    "GraniteMoeHybrid": {"mamba_n_heads": 64},
    "NemotronH": {"num_hidden_layers": None, "hybrid_override_pattern": "ME*-"},
}
MODELS = (
    "Qwen3_5",
    "Qwen3_5Moe",
    "Qwen3Next",
    "Lfm2",
    "Lfm2Moe",
    "GraniteMoeHybrid",
    "NemotronH",
    "FalconH1",
    "OlmoHybrid",
)


@pytest.mark.parametrize("name", MODELS)
def test_missing_keys_have_the_defaults_of_transformers(name: str, tmp_path: Path) -> None:
    given = SIZES | WITHOUT_SIZES.get(name, {})
    given = {key: value for key, value in given.items() if value is not None}
    text = "Text" if name.startswith("Qwen3_5") else ""
    config = getattr(transformers, f"{name}{text}Config")(**given)
    named = {"architectures": [f"{name}ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(given | named))
    alone = spec_of_folder(tmp_path)
    whole = json.loads(config.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps(whole | named))
    assert spec_of_folder(tmp_path) == alone
