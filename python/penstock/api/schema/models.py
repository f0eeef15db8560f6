"""The model routes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.dialog.ranges import MAX_INTEGER

Status = Literal["loaded", "unloaded", "reloading"]


class SamplingDefaultsObject(Struct):
    """The sampling defaults; null is off. `source` names the origin of the values, except those
    that an option of the server sets (`options`)."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    source: Literal["general.sampling", "generation_config.json", "catalogue", "built-in"]
    options: list[str]


class ModelObject(Struct):
    """A card. `parent` and `adapter_generation` are of adapters; `root` is the alias of an adapter,
    or the id of the model that the name means, and never a path.
    `max_model_len`: tokens of the context, where the model is loaded. `sampling_defaults`: where a
    model that writes text is loaded."""

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


class ModelObjects(Struct):
    """The card `default` first."""

    object: Literal["list"]
    data: list[ModelObject]


class ModelOperationRequest(Struct):
    """The model to act on."""

    model_id: Annotated[str, Meta(description="`default`, or an id or alias of `/v1/models`.")]


class ModelStatusResponse(Struct):
    """The status of a model. `error` says why loading it failed."""

    model_id: str
    status: Status
    error: str | UnsetType = UNSET


Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class TuneModelRequest(Struct):
    """The model to tune, and the limits of the settings to search."""

    model_id: Annotated[str, Meta(description="`default`, or an id or alias of `/v1/models`.")]
    profile: Literal["quality", "balanced", "fast"] | None = None
    cpu: bool | None = None
    dtype: str | None = None
    hf_revision: str | None = None
    max_batch_size: Positive | None = None
    max_image_length: Positive | None = None
    max_num_images: Positive | None = None
    max_seq_len: Positive | None = None
    requested_isq: str | None = None
    token_source: str | None = None
