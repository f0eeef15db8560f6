"""Makes the candidates of a model: its weights in each type, with their memory and their speed."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.base.errors import InvalidRequest, ModelError
from penstock.config import EngineSettings
from penstock.config.weight_types import AS_STORED
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel
from penstock.tune.fitting import Fitting
from penstock.tune.machine import Machine
from penstock.tune.speed import estimate_speed
from penstock.tune.types import CacheEstimate, Candidate, SpeedEstimate
from penstock.tune.weight_types import quality_of

log = logging.getLogger(__name__)


@dataclass
class Remarks:
    """Texts of the result. `warnings`: why the result may disappoint; `notes`: how it was made."""

    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Tried:
    """A candidate, and the fitting for its default KV cache and for each other type."""

    candidate: Candidate
    fitting: Fitting
    others: tuple[Fitting, ...]


def try_types(
    machine: Machine,
    files: ModelFiles,
    types: Sequence[str | None],
    settings: EngineSettings,
    sizes: tuple[int, int],
    remarks: Remarks,
) -> list[Tried]:
    """Return a candidate for each of `types` that changes the weights. A single type must be
    possible.

    - `settings`: those of the engine apart from the type and sizes.
    - `sizes`: the context, and the number of sequences that shall have it.

    Raises ModelError for a model that cannot be served, InvalidRequest for a single impossible
    type.
    """
    tried: list[Tried] = []
    unchanged = []
    stored_bytes = _weight_bytes(machine, files, settings)
    for name in types:
        wanted = msgspec.structs.replace(settings, quantization=name)
        try:
            machine.check(wanted)
        except ModelError as error:
            if len(types) == 1:
                raise InvalidRequest(str(error), field="requested_isq") from None
            continue
        model = machine.open(files, wanted, "random")
        weight_bytes = machine.weight_bytes(model, files, wanted)
        if name is not None and weight_bytes == stored_bytes:
            unchanged.append(name)
            if len(types) > 1:
                continue
        tried.append(_try(machine, model, weight_bytes, wanted, sizes, remarks))
    if unchanged:
        remarks.notes.append(
            f"{' and '.join(unchanged)} would change nothing: the matrices of this model are"
            " quantized already"
        )
    return tried


def _weight_bytes(machine: Machine, files: ModelFiles, settings: EngineSettings) -> int:
    return machine.weight_bytes(machine.open(files, settings, "random"), files, settings)


def _try(
    machine: Machine,
    model: LoadedModel,
    weight_bytes: int,
    settings: EngineSettings,
    sizes: tuple[int, int],
    remarks: Remarks,
) -> Tried:
    context, batch = sizes
    fitting, *others = (
        Fitting(
            machine,
            model,
            weight_bytes,
            msgspec.structs.replace(settings, kv_cache_dtype=dtype),
            batch,
        )
        for dtype in machine.cache_dtypes
    )
    caches = tuple(_cache(one, context) for one in (fitting, *others))
    memory = fitting.memory(fitting.sizes(context, batch))
    greatest = caches[0].max_context_tokens
    bits = 8 * weight_bytes / _num_weights(model)
    quality, mean_kl = quality_of(settings.quantization, bits)
    candidate = Candidate(
        isq=settings.quantization,
        isq_name=settings.quantization or stored_name(model),
        estimated_size_bytes=weight_bytes,
        vram_usage_percent=round(memory.total_bytes / max(machine.available_bytes, 1), 4),
        max_context_tokens=greatest,
        context_is_model_max=greatest == model.spec.max_model_len,
        quality=quality,
        mean_kl=mean_kl,
        fit_status="fits" if caches[0].fits else "too-large",
        recommended=False,
        memory=memory,
        caches=caches,
        speed=_speed(machine, model, settings, (min(context, greatest), batch), remarks)
        if greatest
        else None,
    )
    return Tried(candidate, fitting, tuple(others))


def _cache(fitting: Fitting, context: int) -> CacheEstimate:
    return CacheEstimate(
        dtype=fitting.settings.kv_cache_dtype,
        bytes_per_token=fitting.machine.cache_token_bytes(fitting.model, fitting.settings),
        max_context_tokens=fitting.greatest_context(),
        fits=fitting.fits_context(context),
    )


def _speed(
    machine: Machine,
    model: LoadedModel,
    settings: EngineSettings,
    sizes: tuple[int, int],
    remarks: Remarks,
) -> SpeedEstimate | None:
    """Return the speed of a candidate, None with a warning if it cannot be measured."""
    name = settings.quantization or AS_STORED
    try:
        speed = estimate_speed(machine, model, settings, *sizes)
    except ModelError as error:
        remarks.warnings.append(f"the speed of {name} could not be measured: {error}")
        return None
    if speed is None:
        remarks.warnings.append(
            f"the speed of {name} was not measured: its layers need more than a third of the memory"
            " that is free now"
        )
    return speed


def stored_name(model: LoadedModel) -> str:
    """Return the type of most of the stored weights, in the notation of the files."""
    weights = model.weights
    assert isinstance(weights, DecoderWeights)
    return weights.main_type()


def _num_weights(model: LoadedModel) -> int:
    weights = model.weights
    assert isinstance(weights, DecoderWeights)
    shapes = expected_shapes(weights.names, model.spec)
    return max(sum(map(math.prod, shapes.values())), 1)
