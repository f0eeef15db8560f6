"""Reads the keys of multimodal config.json files that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.text_backbone import text_backbone_config
from penstock.models.configuration.vision_config import ACTIVATIONS
from penstock.models.towers.projector import ProjectorLayer
from penstock.models.towers.vision_spec import VisionActivation
from penstock.quant.json_file import read_json

_C = TypeVar("_C")

TOWER_ROOTS: Final = ("model.vision_tower.", "vision_tower.")
"""The prefixes of a tower's tensors. Older checkpoints lack `model.`."""
PROJECTOR_ROOTS: Final = ("model.multi_modal_projector.", "multi_modal_projector.")


def read_model_config(folder: Path, kind: type[_C]) -> tuple[_C, dict[str, Any], str]:
    """Return the keys of the folder's config.json as `kind`, all keys, and the file's path. Raises
    ModelError naming the key at fault."""
    path = folder / "config.json"
    keys = read_json(path, dict[str, Any])
    try:
        return msgspec.convert(keys, kind), keys, str(path)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from None


def text_number(config: Mapping[str, Any], key: str, where: str) -> float:
    """Return a number of the language model's config. Raises ModelError naming the key."""
    value = text_backbone_config(config).get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(f"{where}: text_config: {key} must be a number, not {value!r}")
    return value


def text_width(config: Mapping[str, Any], where: str) -> int:
    """Return the width of the language model."""
    return int(text_number(config, "hidden_size", where))


def activation_of(name: str, where: str) -> VisionActivation:
    """Return the activation of a projector. Raises ModelError for an unknown one."""
    if name not in ACTIVATIONS:
        raise ModelError(
            f"{where}: projector_hidden_act {name!r} is not supported, known are"
            f" {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def two_layers(
    inner: int, width: int, activation: VisionActivation, *, biased: bool
) -> tuple[ProjectorLayer, ProjectorLayer]:
    """Return a projector's layers `linear_1`, with an activation, and `linear_2`."""
    return (
        ProjectorLayer("linear_1", inner, biased, activation),
        ProjectorLayer("linear_2", width, biased),
    )


def token_name(folder: Path, key: str, default: str) -> str:
    """Return the text of a special token that the tokenizer's or the processor's config names."""
    for name in ("processor_config.json", "tokenizer_config.json"):
        path = folder / name
        keys = read_json(path, dict[str, Any]) if path.exists() else {}
        for part in (
            keys,
            keys.get("extra_special_tokens"),
            keys.get("model_specific_special_tokens"),
        ):
            value = part.get(key) if isinstance(part, dict) else None
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                return value
    return default
