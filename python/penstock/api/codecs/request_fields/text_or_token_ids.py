"""Decodes prompts of completions and inputs of embeddings: one or several texts or token id
lists."""

from __future__ import annotations

from typing import cast

from penstock.api.codecs.request_fields.refusals import kind_of, refuse
from penstock.dialog.ranges import MAX_INPUTS

Input = str | tuple[int, ...]


def decode_inputs(value: str | list[str | int | list[int]], path: str) -> tuple[Input, ...]:
    """Return the inputs, each a text or a tuple of token ids. Texts may be empty. Raises
    InvalidRequest, which names the wrong entry."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value[0], int):
        if set(map(type, value)) != {int}:
            index = next(i for i, entry in enumerate(value) if not isinstance(entry, int))
            why = f"must be a token id, not {kind_of(value[index])}"
            refuse(f"{path}[{index}]", why, code="invalid_type")
        return (tuple(cast("list[int]", value)),)
    if len(value) > MAX_INPUTS:
        refuse(path, f"may hold at most {MAX_INPUTS} entries, not {len(value)}")
    return tuple(_input(entry, f"{path}[{index}]") for index, entry in enumerate(value))


def _input(entry: str | int | list[int], path: str) -> Input:
    if isinstance(entry, int):
        wanted = "a string or an array of token ids"
        refuse(path, f"must be {wanted}, not {kind_of(entry)}", code="invalid_type")
    return entry if isinstance(entry, str) else tuple(entry)
