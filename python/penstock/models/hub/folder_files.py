"""The files that a complete safetensors folder has."""

from __future__ import annotations

from pathlib import Path

from penstock.models.encoder.sentence_transformers import module_files
from penstock.quant.safetensors.safetensors_file import INDEX_NAME, SINGLE_NAME, shard_names

ALWAYS = ("config.json", "tokenizer.json")
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"


def named_files(folder: Path) -> list[str]:
    """Return the files that other files in `folder` name, relative to it: weights, and files of
    sentence-transformers modules. Raises ModelError."""
    return [*module_files(folder), *weight_names(folder)]


def weight_names(folder: Path) -> list[str]:
    """Return the files of a folder that hold weights: the shards of its index, or without an index
    the one file. Raises ModelError."""
    index = folder / INDEX_NAME
    return shard_names(index) if index.exists() else [SINGLE_NAME]


def is_complete(folder: Path) -> bool:
    """Return whether the folder has all required files. Raises ModelError."""
    return all((folder / name).exists() for name in (*ALWAYS, *named_files(folder)))
