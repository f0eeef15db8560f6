"""The adapter routes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from penstock.api.schema import fields as f

# The bound of a path: a worker's request to its parent process must fit into a line.
_MAX_CHARS = 4096
# The registry checks the length of a name, with an error of its own.
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
    """An adapter to load, and its alias."""

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
    """An alias to remove."""

    lora_name: _Name
    expected_generation: _Expected | None = None
    lora_int_id: f.Ignored = None
    model: _Model | None = None


class LoraAdapterObject(Struct, kw_only=True):
    """An alias. `source`: the folder that was named, if clients may load adapters."""

    id: str
    object: Literal["lora_adapter"]
    generation: str
    rank: int
    bytes: int
    source: str | UnsetType = UNSET


class LoraGeneration(Struct):
    """One generation in the engine. A retired one is freed with its last lease; one that is not
    resident is loaded by its next request."""

    generation: str
    aliases: list[str]
    rank: int
    size_bytes: int = field(name="bytes")
    retired: bool
    active_leases: int
    resident: bool


class LoraAdapterList(Struct):
    """The aliases, their generations, and the limits."""

    object: Literal["list"]
    data: list[LoraAdapterObject]
    generations: list[LoraGeneration]
    resident_generations: int
    retired_generations: int
    resident_bytes: int
    max_adapters: int
    max_rank: int
    max_bytes: int
