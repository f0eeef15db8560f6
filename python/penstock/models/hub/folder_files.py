"""Lists the files that a complete safetensors folder must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.models.encoder.sentence_transformers import module_files
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.safetensors_file import INDEX_NAME, SINGLE_NAME, shard_names

ALWAYS = ("config.json", "tokenizer.json")
ADAPTERS = ("vision-lora", "speech-lora")
"""The folders of Phi-4-multimodal's adapters, for requests with images, and for others with
recordings."""
_ADAPTED = ("Phi4MMForCausalLM", "Phi4MultimodalForCausalLM")
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"


def named_files(folder: Path) -> list[str]:
    """Return the files that config files in `folder` refer to, as relative paths: weights, files of
    sentence-transformers modules, and the model's own adapters. Raises ModelError for an invalid
    config file."""
    return [*module_files(folder), *weight_names(folder), *adapter_files(folder)]


def adapter_files(folder: Path) -> list[str]:
    """Return the files of the adapters that belong to the model; none without config.json. Raises
    ModelError for an invalid config.json."""
    path = folder / "config.json"
    keys = read_json(path, dict[str, Any]) if path.exists() else {}
    names = keys.get("architectures") or ()
    if not any(name in _ADAPTED for name in names):
        return []
    files = ("adapter_config.json", "adapter_model.safetensors")
    return [f"{adapter}/{file}" for adapter in ADAPTERS for file in files]


def weight_names(folder: Path) -> list[str]:
    """Return the weight files of a folder: the shards that its index lists, or the single file if
    the folder has no index. Raises ModelError for an invalid index."""
    index = folder / INDEX_NAME
    return shard_names(index) if index.exists() else [SINGLE_NAME]


def is_complete(folder: Path) -> bool:
    """Return whether the folder has all required files. Raises ModelError for an invalid config
    file."""
    return all((folder / name).exists() for name in (*ALWAYS, *named_files(folder)))
