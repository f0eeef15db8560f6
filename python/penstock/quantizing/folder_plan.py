"""Decides the type of each matrix of a Hugging Face folder, and describes them in its config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.base.errors import ModelError
from penstock.config.weight_types import AS_STORED
from penstock.models.decoder.tensor_shapes import quantizable_names
from penstock.models.families import registry
from penstock.models.loader.folder_tensors import folder_names
from penstock.models.loader.importance_names import importance_by_tensor
from penstock.quant.encode.type_names import parse_type
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.safetensors.quantization_config import read_scheme
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.quantizing.sources import Floats
from penstock.quantizing.type_plan import Rule, ruled_types

Bits = Literal[4, 8]

FOLDER_TYPES: Final[Mapping[str, Bits]] = {"int4": 4, "int8": 8}
"""The types of a folder: name -> bits of a weight."""
FOLDER_RULE_TYPES: Final = (*FOLDER_TYPES, AS_STORED)
"""The types that rules give to matrices of a folder."""

GROUP: Final = 32


class FolderSource:
    """A folder with float weights, of a decoder family."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises ModelError if it is invalid, quantized already, multimodal, or a
        mixture of experts."""
        self.path = folder
        if read_scheme(folder / "config.json") is not None:
            raise ModelError(f"{folder}: is quantized already; its floats are needed")
        if registry.multimodal_architecture_of_folder(folder) is not None:
            raise ModelError(f"{folder}: multimodal models are not written as folders")
        self._spec = registry.spec_of_folder(folder)
        if any(layer.experts is not None for layer in self._spec.layers):
            raise ModelError(
                f"{folder}: transformers reads no packed experts; name a .gguf output instead"
            )
        self.weights = SafetensorsFolder(folder)
        self._names = folder_names(self._spec, self.weights, None)
        tensors = self.weights.tensors
        self.matrices = [
            name
            for name in dict.fromkeys(quantizable_names(self._names, self._spec))
            if name in tensors and tensors[name].shape[-1] % GROUP == 0
        ]

    def importance(self, matrix: ImportanceMatrix) -> dict[str, Floats]:
        """Return the importance [1, C] of the columns of each matrix. Raises ModelError if `matrix`
        is of another model."""
        found = importance_by_tensor(matrix, self._names, self._spec)
        return {name: found[name] for name in self.matrices if name in found}

    def other_linears(self, plan: FolderPlan) -> list[str]:
        """Return the linear layers that stay floats, and the head if it is the embedding."""
        embedding, head = self._names.embedding, self._names.head
        left = [
            name.removesuffix(".weight")
            for name, info in self.weights.tensors.items()
            if len(info.shape) == 2 and name not in plan.bits and not name.startswith(embedding)
        ]
        return [*left, head] if self._spec.tied_head and head not in left else left


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """The types of a folder.

    - `main`: the bits of matrices that no rule names.
    - `bits`: matrix -> its bits; a matrix without stays floats.
    """

    main: Bits
    bits: Mapping[str, Bits]


def plan_folder(source: FolderSource, type_name: str, rules: Sequence[Rule]) -> FolderPlan:
    """Return the type of each matrix. The first rule that matches decides. Raises ModelError if the
    type is unknown or a rule matches no matrix."""
    name = parse_type(type_name, FOLDER_TYPES)
    if name is None:
        known = ", ".join(FOLDER_TYPES)
        raise ModelError(
            f"type {type_name!r}: a folder's must be one of {known}; an output that ends in"
            " .gguf has others"
        )
    ruled = ruled_types(source.matrices, rules)
    types = {matrix: ruled.get(matrix, name) for matrix in source.matrices}
    bits = {matrix: FOLDER_TYPES[own] for matrix, own in types.items() if own in FOLDER_TYPES}
    return FolderPlan(FOLDER_TYPES[name], bits)


def packed_bytes(shape: tuple[int, ...], bits: Bits) -> int:
    """Return the bytes of the tensors of a quantized matrix: integers, scales and shape."""
    count = math.prod(shape)
    return count * bits // 8 + 2 * count // GROUP + 16


def quantization_config(source: FolderSource, plan: FolderPlan) -> Mapping[str, Any]:
    """Return the entry `quantization_config` of config.json. Linear layers have the main type, and
    those with another are listed by name, which comes before their class."""
    groups = {"group_0": _group(plan.main, ["Linear"])}
    for bits in sorted(set(plan.bits.values()) - {plan.main}):
        named = [name for name, own in plan.bits.items() if own == bits]
        modules = [name.removesuffix(".weight") for name in named]
        groups[f"group_{len(groups)}"] = _group(bits, modules)
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": source.other_linears(plan),
    }


def _group(bits: Bits, targets: Sequence[str]) -> Mapping[str, Any]:
    weights = {
        "num_bits": bits, "type": "int", "symmetric": True, "strategy": "group",
        "group_size": GROUP, "dynamic": False,
    }  # fmt: skip
    return {"targets": list(targets), "weights": weights, "format": "pack-quantized"}
