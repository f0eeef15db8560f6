"""Lists the files that a complete safetensors folder must have."""

from __future__ import annotations

from pathlib import Path

from penstock.models.encoder.sentence_transformers import module_files
from penstock.quant.safetensors.safetensors_file import INDEX_NAME, SINGLE_NAME, shard_names

ALWAYS = ("config.json", "tokenizer.json")
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"


def named_files(folder: Path) -> list[str]:
    """Return the files that config files in `folder` refer to, as relative paths: weights, and
    files of sentence-transformers modules. Raises ModelError for an invalid config file."""
    return [*module_files(folder), *weight_names(folder)]


def weight_names(folder: Path) -> list[str]:
    """Return the weight files of a folder: the shards that its index lists, or the single file if
    the folder has no index. Raises ModelError for an invalid index."""
    index = folder / INDEX_NAME
    return shard_names(index) if index.exists() else [SINGLE_NAME]


def is_complete(folder: Path) -> bool:
    """Return whether the folder has all required files. Raises ModelError for an invalid config
    file."""
    return all((folder / name).exists() for name in (*ALWAYS, *named_files(folder)))
