"""Tunes a model whose files are on disk, or whose headers are."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.base.resources import available_cores
from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import HUB_ID
from penstock.models.loader.model_kind import model_kind
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.cpu.transformers_architecture import unknown_architecture
from penstock.tune.candidates import Remarks, Tried, try_types
from penstock.tune.choice import choose
from penstock.tune.image_sizes import fit_images
from penstock.tune.machine import Machine
from penstock.tune.recommended_settings import recommend, serve_command
from penstock.tune.types import (
    DEFAULT_BATCH,
    DEFAULT_CONTEXT,
    DEFAULT_PROFILE,
    RecommendedSettings,
    TuneModelRequest,
    TuneModelResponse,
)
from penstock.tune.weight_types import TRIED, requested_type

DTYPES = {"auto": "auto", "f32": "f32", "float32": "f32"}
HALF_DTYPES = {"f16": "F16", "float16": "F16", "bf16": "BF16", "bfloat16": "BF16"}
"""dtypes that stand for `auto`, with the type of the files that each expects."""

_BUSY = 0.5
"""The load average per core from which a measurement is doubtful."""


def tune(
    request: TuneModelRequest, machine: Machine, files: ModelFiles, base: EngineSettings
) -> TuneModelResponse:
    """Return the candidates of a model and the settings for it on `machine`.

    `base`: the settings of the engine that the request does not concern. Its `model` is the name
    for the recommended command. Raises InvalidRequest for a field that cannot be honoured, and
    ModelError for a model that cannot be opened.
    """
    began = time.monotonic()
    _refuse_other_kinds(files)
    remarks = Remarks()
    settings = msgspec.structs.replace(
        base,
        device=machine.device,
        dtype=dtype_of(request.dtype),
        kv_cache_dtype="auto",
        quantization=None,
        kv_cache_memory_mb=None,
    )
    types: Sequence[str | None] = (None, *(() if settings.dtype == "f32" else TRIED))
    if request.requested_isq is not None:
        types = (requested_type(request.requested_isq),)
    plain = machine.open(files, settings, "random")
    context = _context(request.max_seq_len, plain, remarks)
    settings = fit_images(request, plain, settings, context, remarks)
    batch = request.max_batch_size or DEFAULT_BATCH
    _note_load(remarks)
    if request.hf_revision not in (None, "main"):
        remarks.warnings.append(_revision_warning(request.hf_revision, base.model))
    tried = try_types(machine, files, types, settings, (context, batch), remarks)
    _note_dtype(request.dtype, tried, remarks)
    profile = request.profile or DEFAULT_PROFILE
    chosen = choose([one.candidate for one in tried], profile)
    recommended = None
    if chosen is None:
        remarks.warnings.append("the model does not fit in any type, whatever its context")
    else:
        place = machine.device if request.cpu else base.device
        named = RecommendedSettings(model=base.model, device=place)
        recommended = recommend(tried[chosen], context, named, remarks)
        picked = msgspec.structs.replace(tried[chosen].candidate, recommended=True)
        tried[chosen] = Tried(picked, tried[chosen].fitting, tried[chosen].others)
    _note_method(tried, machine, settings, remarks)
    return TuneModelResponse(
        model_id=files.model_id,
        profile=profile,
        backend=machine.backend,
        candidates=[one.candidate for one in tried],
        recommended_isq=None if recommended is None else recommended.quantization,
        recommended_command=None if recommended is None else serve_command(recommended),
        recommended_settings=recommended,
        total_vram_bytes=machine.total_bytes,
        available_bytes=machine.available_bytes,
        max_seq_len=context,
        max_batch_size=batch,
        measured_s=round(time.monotonic() - began, 1),
        warnings=remarks.warnings,
        notes=remarks.notes,
    )


def dtype_of(name: str | None) -> str:
    """Return the setting `dtype` for a request's. Raises InvalidRequest that names the values."""
    lowered = "auto" if name is None else name.strip().lower()
    if lowered in HALF_DTYPES:
        return "auto"
    if lowered not in DTYPES:
        raise InvalidRequest(
            f"dtype is {name!r}; it must be one of {', '.join((*DTYPES, *HALF_DTYPES))}",
            field="dtype",
        )
    return DTYPES[lowered]


def _refuse_other_kinds(files: ModelFiles) -> None:
    """Raise InvalidRequest for a model that is not served by a decoder of this engine."""
    kind = model_kind(files)
    if kind != "text":
        raise InvalidRequest(
            f"{files.model_id} is a model of the kind {kind}; only models that generate text can be"
            " tuned",
            field="model_id",
            code="model_not_tunable",
        )
    if files.kind == "folder" and unknown_architecture(files.path) is not None:
        raise InvalidRequest(
            f"{files.model_id} runs with the code of transformers, which is served as stored; there"
            " is nothing to tune",
            field="model_id",
            code="model_not_tunable",
        )


def _context(wanted: int | None, model: LoadedModel, remarks: Remarks) -> int:
    asked, most = wanted or DEFAULT_CONTEXT, model.spec.max_model_len
    if wanted is not None and asked > most:
        remarks.warnings.append(f"max_seq_len is {asked}; the context of the model is {most}")
    return min(asked, most)


def _revision_warning(revision: str | None, model: str) -> str:
    if HUB_ID.fullmatch(model) is None:
        return f"hf_revision {revision} has no effect: the model is no repository of the hub"
    return (
        f"`penstock serve` loads the revision main; to serve {revision}, download it and name its"
        " folder"
    )


def _note_dtype(name: str | None, tried: Sequence[Tried], remarks: Remarks) -> None:
    expected = HALF_DTYPES.get((name or "").strip().lower())
    if expected is None or not tried:
        return
    stored = tried[0].candidate.isq_name
    if tried[0].candidate.isq is None and stored != expected:
        remarks.notes.append(
            f"dtype {name} means auto: the weights keep the type of the files, {stored}"
        )


def _note_load(remarks: Remarks) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        remarks.warnings.append(
            f"the machine was busy (load {load:.1f} on {cores} cores); an idle machine is faster"
            " than these figures"
        )


def _note_method(
    tried: Sequence[Tried], machine: Machine, settings: EngineSettings, remarks: Remarks
) -> None:
    speeds = [one.candidate.speed for one in tried if one.candidate.speed is not None]
    if not speeds:
        return
    threads = settings.threads or available_cores()
    place = f"{threads} threads" if machine.backend == "cpu" else "the GPU"
    whole = speeds[0].model_layers
    fewest, most = (pick(one.measured_layers for one in speeds) for pick in (min, max))
    layers = f"all {whole}" if fewest == whole else f"{fewest} of {whole}"
    if fewest < most:
        layers = f"{fewest} to {most} of {whole}"
    remarks.notes.append(
        f"speeds are estimates: {layers} layers with random weights of the same shapes were"
        f" measured with {place}"
    )
