"""Requests and answers of the model routes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Status = Literal["loaded", "unloaded", "reloading"]


class SamplingDefaultsObject(Struct):
    """The sampling defaults of a model; null means that the method is off. `options`: the names of
    values that a server option sets. `source`: the origin of all other values."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    source: Literal["general.sampling", "generation_config.json", "catalogue", "built-in"]
    options: list[str]


class ArchitectureObject(Struct):
    """The content that a model reads and makes, in the form of OpenRouter and llama.cpp."""

    input_modalities: list[Literal["text", "image", "audio", "video"]]
    output_modalities: list[
        Literal["text", "transcription", "embeddings", "rerank", "speech", "image"]
    ]


class ModelObject(Struct):
    """A model, an alias or an adapter that requests can name. `root`: the id of the model, or the
    alias of the adapter; never a path. `parent`: the base model of an adapter. `max_model_len`: the
    context length in tokens, null if the model is not loaded or takes no tokens.
    `sampling_defaults`: null if the model is not loaded or does not generate text. `architecture`:
    null if the model is not loaded. `voices`: of a speech model that is loaded, the default voice
    first."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str | None
    status: Status | None
    tools_available: bool | None
    mcp_tools_count: int | None
    mcp_servers_connected: int | None
    parent: str | None
    adapter_generation: str | None
    max_model_len: int | None
    sampling_defaults: SamplingDefaultsObject | None
    architecture: ArchitectureObject | None
    voices: list[str] | UnsetType = UNSET


class ModelObjects(Struct):
    """All models; `default` comes first."""

    object: Literal["list"]
    data: list[ModelObject]


class ModelOperationRequest(Struct):
    """The model to load, to unload or to report on."""

    model_id: Annotated[str, Meta(description="`default`, or an id or alias of `/v1/models`.")]


class ModelStatusResponse(Struct):
    """The status of a model. `error`: why the model could not be loaded."""

    model_id: str
    status: Status
    error: str | UnsetType = UNSET
