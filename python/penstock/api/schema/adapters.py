"""The adapter routes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

_Name = Annotated[str, Meta(min_length=1, max_length=256, description="The alias.")]
_Expected = Annotated[str, Meta(description="Only if the alias names this generation.")]
_Model = Annotated[str, Meta(description="The base model; the default one where it is absent.")]


class LoadLoraAdapterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which adapter to load, and what to call it."""

    lora_name: _Name
    lora_path: Annotated[
        str,
        Meta(
            min_length=1,
            description="A folder of the server with adapter_config.json and"
            " adapter_model.safetensors.",
        ),
    ]
    load_inplace: Annotated[
        bool | None, Meta(description="Replace the adapter that the alias names.")
    ] = None
    expected_generation: _Expected | None = None
    model: _Model | None = None


class UnloadLoraAdapterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which alias to forget."""

    lora_name: _Name
    expected_generation: _Expected | None = None
    model: _Model | None = None


class LoraAdapterObject(Struct, kw_only=True):
    """An alias. `source`: the folder as it was named, where clients may load adapters."""

    id: str
    object: Literal["lora_adapter"]
    generation: str
    rank: int
    bytes: int
    source: str | UnsetType = UNSET


class LoraGeneration(Struct):
    """What the engine has of one generation. A retired one goes with its last lease; one that is
    not resident is loaded by its next request."""

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
