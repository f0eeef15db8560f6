"""Which instruction-set levels serve a model on a CPU: the one that the operator names, or those
that a measurement chose when this machine first loaded a model of these shapes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock import _native
from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import EngineSettings
from penstock.kernels.isa.choice import (
    BUDGET_S,
    Clock,
    SystemClock,
    Times,
    choose_isas,
    measure,
)
from penstock.kernels.isa.instruction_sets import IsaSelection, KernelShapes, form_name
from penstock.kernels.native import Pool
from penstock.kernels.native.isa_trials import candidate_isas, isa_trials
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.loader.model_loader import LoadedEmbedder, LoadedModel
from penstock.runtime.cpu.saved_isa_selections import (
    SCHEMA,
    IsaSelectionKey,
    SavedIsaSelection,
    all_saved,
    build_name,
    keep,
    processor_name,
    recall,
)
from penstock.runtime.memory import CacheShape

log = logging.getLogger(__name__)

SYSTEM_CLOCK = SystemClock()


def select_isas(
    model: LoadedModel | LoadedEmbedder,
    cache: CacheShape,
    settings: EngineSettings,
    home: Path,
    clock: Clock = SYSTEM_CLOCK,
) -> IsaSelection:
    """The levels for `model`, whose keys and values lie in caches like `cache`. What is measured
    is kept under `home`. Raises ModelError for a level that this machine or build lacks."""
    if settings.cpu_level != "auto":
        return _forced(settings.cpu_level)
    levels = candidate_isas()
    if len(levels) == 1:
        return IsaSelection.all_of(levels[0])
    shapes = kernel_shapes(model, cache)
    key = _key(levels, described(shapes))
    kept = recall(home, key)
    if kept is not None:
        return kept.levels
    deadline = clock.now() + BUDGET_S
    try:
        trials = isa_trials(shapes, levels, Pool(settings.threads or available_cores()))
    except ValueError:  # sizes that no level takes, as the load itself will tell
        return IsaSelection.all_of(levels[-1])
    times = measure(trials, clock, deadline)
    if times is None:
        log.warning(
            "%s: this machine is too busy to measure its CPU levels; %s serves, and the next start"
            " measures again",
            model.model_id,
            levels[-1],
        )
        return IsaSelection.all_of(levels[-1])
    count, taken = shapes.experts or (1, 1)
    made = SavedIsaSelection(
        schema=SCHEMA,
        key=key,
        model_id=model.model_id,
        levels=choose_isas(times, levels, count / taken),
        microseconds=told(times),
    )
    kept = keep(home, made)
    log.info("%s: CPU levels: %s", model.model_id, summary(kept.levels))
    return kept.levels


def saved_isa_selections(home: Path) -> tuple[list[str], list[SavedIsaSelection]]:
    """The levels that may serve on this machine, narrowest first, and the choices that are kept for
    it and for this build."""
    levels = candidate_isas()
    here = _key(levels, ())
    return levels, [
        one for one in all_saved(home) if msgspec.structs.replace(one.key, shapes=()) == here
    ]


def kernel_shapes(model: LoadedModel | LoadedEmbedder, cache: CacheShape) -> KernelShapes:
    """The work that is measured for a model."""
    spec = model.spec
    kv_heads = spec.heads if isinstance(spec, EncoderSpec) else spec.kv_heads
    both = isinstance(spec, EncoderSpec) or spec.bidirectional
    return KernelShapes(
        forms=model.weights.forms(),
        heads=(spec.heads, kv_heads, spec.head_dim),
        cache_dtype="float16" if cache.item_bytes == 2 else "float32",
        block_size=cache.block_size,
        inner=spec.ff,
        reach="both" if both else "back",
        experts=_experts(spec),
    )


def described(shapes: KernelShapes) -> tuple[str, ...]:
    """One line for each fact, in a fixed order."""
    query, shared, dim = shapes.heads
    forms = sorted(
        f"{form_name(form.pattern)}: {form.rows} x {form.columns}, {form.elements} in all"
        for form in shapes.forms
    )
    count, taken = shapes.experts or (0, 0)
    return (
        *forms,
        f"heads: {query}, {shared} with keys, of {dim}; {shapes.reach}",
        f"cache: {shapes.cache_dtype} in blocks of {shapes.block_size}",
        f"inner: {shapes.inner}; experts: {taken} of {count}",
    )


def summary(levels: IsaSelection) -> str:
    """One line: "products avx512 (up to 7 rows avx2, more avx512), attention avx512, ..."."""
    parts = [
        f"{'more' if one.most_rows is None else f'up to {one.most_rows} rows'} {one.level}"
        for one in levels.linear
    ]
    rows = f" ({', '.join(parts)})" if parts else ""
    return f"products {levels.products}{rows}, attention {levels.attention}, other {levels.other}"


def told(times: Times) -> dict[str, float]:
    """Microseconds by kind, rows, arithmetic and level."""
    return {
        f"{cell.kind}, {cell.rows} rows, as {cell.arithmetic}, by {cell.isa}": round(
            1e6 * seconds, 1
        )
        for cell, seconds in times.items()
    }


def _key(levels: Sequence[str], shapes: tuple[str, ...]) -> IsaSelectionKey:
    build = build_name(Path(_native.__file__))
    return IsaSelectionKey(processor_name(), tuple(levels), build, shapes)


def _forced(level: str) -> IsaSelection:
    try:
        _native.KernelSet(level)
    except ValueError as refusal:
        raise ModelError(f"cpu_level: {refusal}") from None
    return IsaSelection.all_of(level)


def _experts(spec: DecoderSpec | EncoderSpec) -> tuple[int, int] | None:
    if isinstance(spec, EncoderSpec):
        return None
    mixtures = [layer.experts for layer in spec.layers if layer.experts is not None]
    return (mixtures[0].count, mixtures[0].per_token) if mixtures else None
