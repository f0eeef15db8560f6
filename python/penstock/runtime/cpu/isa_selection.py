"""Selects the instruction sets (ISAs) with which a CPU serves a model: the ISA that the operator
names, or the ISAs that were fastest when this machine first loaded a model with the same kernel
shapes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

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
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.cpu.saved_isa_selections import (
    SCHEMA,
    IsaSelectionKey,
    SavedIsaSelection,
    all_saved,
    build_name,
    load_selection,
    processor_name,
    save_selection,
)

log = logging.getLogger(__name__)

SYSTEM_CLOCK = SystemClock()
_CACHE_DTYPES: Final[dict[int, Literal["float16", "float32", "int8"]]] = {
    1: "int8",
    2: "float16",
    4: "float32",
}


def select_isas(
    model: LoadedModel | LoadedEmbedder,
    cache: CacheShape,
    settings: EngineSettings,
    home: Path,
    clock: Clock = SYSTEM_CLOCK,
) -> IsaSelection:
    """Return the ISAs for the kernels of `model` with a KV cache of the shape `cache`.

    Unless the settings name an ISA, a selection saved under `home` is used, or the kernels are
    measured and the selection is saved there. Raises ModelError for a `cpu_isa` that this machine
    or this build does not support.
    """
    if settings.cpu_isa != "auto":
        return _forced(settings.cpu_isa)
    isas = candidate_isas()
    if len(isas) == 1:
        return IsaSelection.all_of(isas[0])
    shapes = kernel_shapes(model, cache)
    key = _key(isas, describe_shapes(shapes))
    saved = load_selection(home, key)
    if saved is not None:
        return saved.levels
    deadline = clock.now() + BUDGET_S
    try:
        trials = isa_trials(shapes, isas, Pool(settings.threads or available_cores()))
    except ValueError:  # sizes that no ISA supports; loading the model raises the error
        return IsaSelection.all_of(isas[-1])
    times = measure(trials, clock, deadline)
    if times is None:
        log.warning(
            "%s: this machine is too busy to measure its instruction sets; using %s, and measuring"
            " again at the next start",
            model.model_id,
            isas[-1],
        )
        return IsaSelection.all_of(isas[-1])
    num_experts, top_k = shapes.experts or (1, 1)
    made = SavedIsaSelection(
        schema=SCHEMA,
        key=key,
        model_id=model.model_id,
        levels=choose_isas(times, isas, num_experts / top_k),
        microseconds=in_microseconds(times),
    )
    saved = save_selection(home, made)
    log.info("%s: CPU instruction sets: %s", model.model_id, summary(saved.levels))
    return saved.levels


def saved_isa_selections(home: Path) -> tuple[list[str], list[SavedIsaSelection]]:
    """Return the ISAs that this machine can use, narrowest first, and the selections that are saved
    for this machine and this build."""
    isas = candidate_isas()
    here = _key(isas, ())
    return isas, [
        one for one in all_saved(home) if msgspec.structs.replace(one.key, shapes=()) == here
    ]


def kernel_shapes(model: LoadedModel | LoadedEmbedder, cache: CacheShape) -> KernelShapes:
    """Return the shapes of a model's kernels, for which ISAs are measured and selected."""
    spec = model.spec
    kv_heads = spec.num_heads if isinstance(spec, EncoderSpec) else spec.num_kv_heads
    both = isinstance(spec, EncoderSpec) or spec.bidirectional
    return KernelShapes(
        forms=model.weights.forms(),
        heads=(spec.num_heads, kv_heads, spec.head_dim),
        cache_dtype=_CACHE_DTYPES[cache.item_bytes],
        block_size=cache.block_size,
        inner=spec.intermediate_size,
        reach="both" if both else "back",
        experts=_experts(spec),
    )


def describe_shapes(shapes: KernelShapes) -> tuple[str, ...]:
    """Return the kernel shapes as lines of text in a fixed order. The lines are part of the key of
    a saved selection."""
    query, shared, dim = shapes.heads
    forms = sorted(
        f"{form_name(form.pattern)}: {form.rows} x {form.columns}, {form.elements} in all"
        for form in shapes.forms
    )
    num_experts, top_k = shapes.experts or (0, 0)
    return (
        *forms,
        f"heads: {query}, {shared} with keys, of {dim}; {shapes.reach}",
        f"cache: {shapes.cache_dtype} in blocks of {shapes.block_size}",
        f"inner: {shapes.inner}; experts: {top_k} of {num_experts}",
    )


def summary(isas: IsaSelection) -> str:
    """Return the selection in one line: "products avx512 (up to 7 rows avx2, more avx512),
    attention avx512, other avx2"; with "prompts amx" if prompts have their own ISA."""
    parts = [
        f"{'more' if one.most_rows is None else f'up to {one.most_rows} rows'} {one.level}"
        for one in isas.linear
    ]
    rows = f" ({', '.join(parts)})" if parts else ""
    prompts = f", prompts {isas.prompts}" if isas.prompts else ""
    return (
        f"products {isas.products}{rows}, attention {isas.attention}, other {isas.other}{prompts}"
    )


def in_microseconds(times: Times) -> dict[str, float]:
    """Return the measured times in microseconds, by a text that names the kernel, the rows, the
    arithmetic and the ISA."""
    return {
        f"{cell.kind}, {cell.rows} rows, as {cell.arithmetic}, by {cell.isa}": round(
            1e6 * seconds, 1
        )
        for cell, seconds in times.items()
    }


def _key(isas: Sequence[str], shapes: tuple[str, ...]) -> IsaSelectionKey:
    build = build_name(Path(_native.__file__))
    return IsaSelectionKey(processor_name(), tuple(isas), build, shapes)


def _forced(isa: str) -> IsaSelection:
    try:
        _native.KernelSet(isa)
    except ValueError as refusal:
        raise ModelError(f"cpu_isa: {refusal}") from None
    return IsaSelection.all_of(isa)


def _experts(spec: DecoderSpec | EncoderSpec) -> tuple[int, int] | None:
    if isinstance(spec, EncoderSpec):
        return None
    mixtures = [layer.experts for layer in spec.layers if layer.experts is not None]
    return (mixtures[0].count, mixtures[0].per_token) if mixtures else None
