"""Estimates the speed of a model from some of its layers, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Final

import msgspec

from penstock.config import EngineSettings
from penstock.models.decoder.sampled_weights import SampledWeights, weight_sizes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.loader.model_loader import LoadedModel
from penstock.quant.weight_slices import size_bytes
from penstock.tune.layer_samples import LayerSamples, choose_samples
from penstock.tune.machine import Machine, Sizes, cache_mb
from penstock.tune.step_times import STEPS, StepTimes, Work, time_steps
from penstock.tune.types import SpeedEstimate

PROMPT: Final = 512
"""Tokens of the prompt whose prefill is measured, unless the context is shorter."""

MOST_ROWS: Final = 64
"""The most sequences that are measured together."""

_SHARE: Final = 3
"""A measurement uses at most one part in _SHARE of the free memory: packing needs some beside the
packed weights."""


def estimate_speed(
    machine: Machine, model: LoadedModel, settings: EngineSettings, context: int, rows: int
) -> SpeedEstimate | None:
    """Measure some layers of a model and return the speed of the whole. Return None if the memory
    that is free now does not suffice. `model`: has random weights.

    - `settings`: those of the engine; sizes of the cache and of steps are chosen here.
    - `context`: tokens of the longest sequence. `rows`: sequences of this length that fit.
    """
    weights = model.weights
    assert isinstance(weights, DecoderWeights), "as `load_model` opens them"
    outside, layers = weight_sizes(weights, size_bytes)
    samples = choose_samples(model.spec, outside, layers, machine.free_bytes // _SHARE)
    if samples is None:
        return None
    context = max(min(context, model.spec.max_model_len), 2 * STEPS)
    prompt = min(PROMPT, context - 2 * STEPS) or STEPS
    together = min(rows, MOST_ROWS, max(rows * context // (prompt + 2 * STEPS), 1))
    work = Work(prompt, context, together)
    times = [
        _times(machine, _sampled(model, weights, chosen), settings, work)
        for chosen in samples.models
    ]
    return _speed(_whole(samples, times), work, samples, len(layers))


def _sampled(model: LoadedModel, weights: DecoderWeights, layers: Sequence[int]) -> LoadedModel:
    """Return the language model of `model` with these layers only."""
    text = replace(model, media_spec=None, media=())
    if len(layers) == len(model.spec.layers):
        return text
    sampled = SampledWeights(weights, layers)
    return replace(text, spec=sampled.spec, weights=sampled)


def _times(machine: Machine, model: LoadedModel, settings: EngineSettings, work: Work) -> StepTimes:
    sizes = Sizes(work.context, work.rows, work.cache_tokens + work.rows * settings.block_size)
    token_bytes = machine.cache_token_bytes(model, settings)
    measured = msgspec.structs.replace(
        settings,
        max_model_len=work.context,
        max_num_seqs=work.rows,
        kv_cache_memory_mb=cache_mb(token_bytes, sizes, settings.block_size),
        state_snapshot_memory_mb=0 if model.spec.is_recurrent else None,
        lora=None,
        draft_model=None,
        speculative_algorithm="none",
    )
    runtime = machine.start(model, measured)
    try:
        return time_steps(runtime, work)
    finally:
        runtime.close()


def _whole(samples: LayerSamples, times: Sequence[StepTimes]) -> StepTimes:
    names = [field.name for field in fields(StepTimes)]
    return StepTimes(
        **{name: samples.whole_time([getattr(time, name) for time in times]) for name in names}
    )


def _speed(whole: StepTimes, work: Work, samples: LayerSamples, num_layers: int) -> SpeedEstimate:
    return SpeedEstimate(
        prefill_tokens_per_s=_rounded(work.prompt / whole.prompt_s),
        decode_tokens_per_s=_rounded(1 / whole.decode_s),
        decode_at_context_tokens_per_s=_rounded(1 / whole.deep_s),
        batch_decode_tokens_per_s=_rounded(work.rows / whole.batch_s),
        batch_sequences=work.rows,
        prompt_tokens=work.prompt,
        measured_layers=samples.num_layers,
        model_layers=num_layers,
    )


def _rounded(rate: float) -> float:
    """Return the rate with three digits."""
    return float(f"{rate:.3g}")
