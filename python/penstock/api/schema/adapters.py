"""Requests and answers of the LoRA adapter routes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from penstock.api.schema import fields as f

# Longest path: an API process sends the request to its parent process as one line of bounded size.
_MAX_CHARS = 4096
# The adapter catalog checks the length of a name and raises its own error.
_Name = Annotated[
    str,
    Meta(
        max_length=_MAX_CHARS,
        extra_json_schema={"minLength": 1, "maxLength": 256},
        description="The alias.",
    ),
]
_Expected = Annotated[
    str, Meta(max_length=_MAX_CHARS, description="Only if the alias names this generation.")
]
_Model = Annotated[str, Meta(description="The base model. Absent: the default model.")]


class LoadLoraAdapterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Loads an adapter under an alias."""

    lora_name: _Name
    lora_path: Annotated[
        str,
        Meta(
            max_length=_MAX_CHARS,
            extra_json_schema={"minLength": 1},
            description="A folder of the server with adapter_config.json and"
            " adapter_model.safetensors.",
        ),
    ]
    load_inplace: Annotated[
        bool | None, Meta(description="Replace the adapter that the alias names.")
    ] = None
    replace: Annotated[bool | None, Meta(description="The same as `load_inplace`.")] = None
    expected_generation: _Expected | None = None
    model: _Model | None = None
    is_3d_lora_weight: Annotated[bool | None, Meta(description="Without effect.")] = None


class UnloadLoraAdapterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Removes an alias."""

    lora_name: _Name
    expected_generation: _Expected | None = None
    lora_int_id: f.Ignored = None
    model: _Model | None = None


class LoraAdapterObject(Struct, kw_only=True):
    """A loaded alias and the adapter generation that it names. `source`: the folder from which a
    client loaded the adapter; present only if clients may load adapters."""

    id: str
    object: Literal["lora_adapter"]
    generation: str
    rank: int
    bytes: int
    source: str | UnsetType = UNSET


class LoraGeneration(Struct):
    """One generation of an adapter in the engine. `retired`: no alias names the generation any
    more; it is freed when `active_leases` reaches 0. `resident` false: the next request that uses
    the generation loads it."""

    generation: str
    aliases: list[str]
    rank: int
    size_bytes: int = field(name="bytes")
    retired: bool
    active_leases: int
    resident: bool


class LoraAdapterList(Struct):
    """All aliases, all generations, the memory in use, and the limits."""

    object: Literal["list"]
    data: list[LoraAdapterObject]
    generations: list[LoraGeneration]
    resident_generations: int
    retired_generations: int
    resident_bytes: int
    max_adapters: int
    max_rank: int
    max_bytes: int
