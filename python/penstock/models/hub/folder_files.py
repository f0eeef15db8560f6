"""Which files a folder of safetensors is complete with."""

from __future__ import annotations

from pathlib import Path

from penstock.models.encoder.sentence_transformers import module_files
from penstock.quant.safetensors.safetensors_file import INDEX_NAME, SINGLE_NAME, shard_names

ALWAYS = ("config.json", "tokenizer.json")
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"


def named_files(folder: Path) -> list[str]:
    """The files that others in `folder` name, relative to it: those of its weights, and what
    modules are read from. Raises ModelError."""
    return [*module_files(folder), *weight_names(folder)]


def weight_names(folder: Path) -> list[str]:
    """The files that hold the weights of a folder: the shards of its index, or the one file where
    there is none. Raises ModelError."""
    index = folder / INDEX_NAME
    return shard_names(index) if index.exists() else [SINGLE_NAME]


def is_complete(folder: Path) -> bool:
    """Whether all that the folder must have is there. Raises ModelError."""
    return all((folder / name).exists() for name in (*ALWAYS, *named_files(folder)))
