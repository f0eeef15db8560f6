"""Entries of the route table: models and LoRA adapters."""

from __future__ import annotations

from typing import Final

from penstock.api.route_table.operation import (
    ADAPTER_ERRORS,
    AFTER,
    BEFORE,
    BODY_ERRORS,
    LIMIT,
    TEXT_VALUE,
    Operation,
    Query,
)
from penstock.api.routes.adapters import ListAdapters, LoadAdapter, UnloadAdapter
from penstock.api.routes.models import (
    GetModel,
    ListModels,
    TuneModel,
    model_status,
    reload_model,
    unload_model,
)
from penstock.api.schema.adapters import (
    LoadLoraAdapterRequest,
    LoraAdapterList,
    LoraAdapterObject,
    UnloadLoraAdapterRequest,
)
from penstock.api.schema.models import (
    ModelObject,
    ModelObjects,
    ModelOperationRequest,
    ModelStatusResponse,
)
from penstock.api.services import Services
from penstock.tune.types import TuneModelRequest, TuneModelResponse

TAG: Final = "Models"
EXAMPLE: Final = {"model_id": "default"}


def adapter_updates_enabled(services: Services) -> bool:
    """Tell whether clients may load and unload adapters."""
    return services.adapter_updates


OPERATIONS: Final = (
    Operation(
        "GET /v1/models",
        ListModels,
        id="listModels",
        tag=TAG,
        summary="List the models with their status",
        response=ModelObjects,
        errors=(400,),
        query=(
            LIMIT,
            Query("after_id", AFTER.description, TEXT_VALUE),
            Query("before_id", BEFORE.description, TEXT_VALUE),
        ),
    ),
    Operation(
        "GET /v1/lora_adapters",
        ListAdapters,
        id="listAdapters",
        tag=TAG,
        summary="List the LoRA adapters of a model; 409 if the model has no LoRA runtime",
        response=LoraAdapterList,
        errors=(404, 409),
        query=(Query("model", "Defaults to the default model.", TEXT_VALUE),),
    ),
    Operation(
        "POST /v1/load_lora_adapter",
        LoadAdapter,
        id="loadAdapter",
        tag=TAG,
        summary="Load a LoRA adapter. Exists only if the server lets clients load adapters",
        request=LoadLoraAdapterRequest,
        example={"lora_name": "style", "lora_path": "/srv/adapters/style"},
        response=LoraAdapterObject,
        errors=ADAPTER_ERRORS,
        enabled=adapter_updates_enabled,
    ),
    Operation(
        "POST /v1/unload_lora_adapter",
        UnloadAdapter,
        id="unloadAdapter",
        tag=TAG,
        summary=(
            "Unload a LoRA adapter; running requests keep it. Exists only if the server lets"
            " clients load adapters"
        ),
        request=UnloadLoraAdapterRequest,
        example={"lora_name": "style"},
        response=LoraAdapterObject,
        errors=ADAPTER_ERRORS,
        enabled=adapter_updates_enabled,
    ),
    Operation(
        "POST /v1/models/reload",
        reload_model,
        id="reloadModel",
        tag=TAG,
        summary="Load an unloaded model; responds once the model serves requests",
        request=ModelOperationRequest,
        example=EXAMPLE,
        response=ModelStatusResponse,
        errors=(*BODY_ERRORS, 404, 503),
    ),
    Operation(
        "POST /v1/models/status",
        model_status,
        id="modelStatus",
        tag=TAG,
        summary="Get the status of a model",
        request=ModelOperationRequest,
        example=EXAMPLE,
        response=ModelStatusResponse,
        errors=(*BODY_ERRORS, 404),
    ),
    Operation(
        "POST /v1/models/tune",
        TuneModel,
        id="tuneModel",
        tag=TAG,
        summary="Measure which types of weights fit and how fast they are, and recommend settings",
        request=TuneModelRequest,
        example={**EXAMPLE, "profile": "balanced", "max_seq_len": 4096},
        response=TuneModelResponse,
        errors=(*BODY_ERRORS, 403, 404, 503),
    ),
    Operation(
        "POST /v1/models/unload",
        unload_model,
        id="unloadModel",
        tag=TAG,
        summary=(
            "Unload a model; responds once running requests have finished and its memory is free"
        ),
        request=ModelOperationRequest,
        example=EXAMPLE,
        response=ModelStatusResponse,
        errors=(*BODY_ERRORS, 404),
    ),
    Operation(
        "GET /v1/models/{model:path}",
        GetModel,
        id="getModel",
        tag=TAG,
        summary="Get a model",
        response=ModelObject,
        errors=(404,),
    ),
)
