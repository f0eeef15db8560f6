"""Decides the type of each tensor: by a rule, or else by a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.base.errors import ModelError
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.encode.fitting_type import fitting_type
from penstock.quant.encode.recipes import KEPT, Recipe, place_of
from penstock.quant.encode.type_names import ENCODED, parse_type
from penstock.quant.gguf.gguf_layout import NewTensor

_LAYER = re.compile(r"(?:blk|layers)\.(\d+)\.")
_EMBEDDINGS = ("token_embd.weight",)
_HEADS = ("output.weight",)


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors whose name the pattern matches anywhere have the type `type_name`."""

    pattern: re.Pattern[str]
    type_name: str


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be written.

    - `kept`: its bytes are copied.
    - `wanted`: the type that rule or recipe names, if its columns make no whole blocks.
    """

    target: NewTensor
    kept: bool = False
    wanted: str | None = None


def parse_rule(text: str, types: Sequence[str] = ENCODED) -> Rule:
    """Parse PATTERN=TYPE. `types`: the names that TYPE may have. Raises ModelError if the pattern
    is no regular expression or the type is unknown."""
    pattern, equals, name = text.rpartition("=")
    type_name = parse_type(name, types)
    if not equals or not pattern or type_name is None:
        raise ModelError(
            f"tensor type {text!r}: must be PATTERN=TYPE, with a type of {', '.join(types)}"
        )
    try:
        return Rule(re.compile(pattern), type_name)
    except re.error as error:
        raise ModelError(f"tensor type {text!r}: the pattern is invalid: {error}") from None


def plan_types(
    tensors: Mapping[str, TensorInfo], recipe: Recipe, rules: Sequence[Rule]
) -> list[PlannedTensor]:
    """Return the type of each tensor. The first rule that matches decides. Raises ModelError if a
    rule matches no matrix."""
    num_layers = 1 + max((int(m[1]) for name in tensors if (m := _LAYER.search(name))), default=-1)
    tied = not any(head in tensors for head in _HEADS)
    ruled = ruled_types([info.name for info in tensors.values() if _is_matrix(info)], rules)
    planned = []
    for name, info in tensors.items():
        if name in ruled:
            planned.append(_planned(info, ruled[name]))
        elif not _is_matrix(info) or KEPT.search(name):
            planned.append(_kept(info))
        else:
            planned.append(_planned(info, recipe.type_of(place_of(name, num_layers), tied)))
    return planned


def ruled_types(matrices: Iterable[str], rules: Sequence[Rule]) -> dict[str, str]:
    """Return the types of those of the matrices that a rule matches. The first rule that matches
    decides. Raises ModelError if a rule matches no matrix."""
    unused = set(range(len(rules)))
    found = {}
    for name in matrices:
        number = next((n for n, rule in enumerate(rules) if rule.pattern.search(name)), None)
        if number is not None:
            unused.discard(number)
            found[name] = rules[number].type_name
    if unused:
        missed = rules[min(unused)].pattern.pattern
        raise ModelError(f"tensor type {missed!r}: matches no matrix that is left to it")
    return found


def _is_matrix(info: TensorInfo) -> bool:
    return len(info.shape) in (2, 3) and info.name.endswith("weight") and info.shape[-1] > 1


def _kept(info: TensorInfo) -> PlannedTensor:
    return PlannedTensor(NewTensor(info.name, info.shape, info.type_name), kept=True)


def _planned(info: TensorInfo, wanted: str) -> PlannedTensor:
    type_name = fitting_type(wanted, info.shape[-1])
    if type_name == info.type_name:
        return _kept(info)
    target = NewTensor(info.name, info.shape, type_name)
    return PlannedTensor(target, wanted=None if type_name == wanted else wanted)
