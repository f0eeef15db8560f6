"""Builds the LayerSpec of each decoder layer from config.json: which layers have a sliding
window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_rope import FULL, SLIDING
from penstock.models.decoder.spec import LayerSpec
from penstock.models.decoder.spec_limits import MAX_LAYERS

_LAYER_TYPES: Final = frozenset({FULL, SLIDING})


def num_layers(config: HfConfig, where: str) -> int:
    """Return the number of layers. Raises ModelError if `num_hidden_layers` is out of range, or if
    `layer_types` has another length or an unknown type."""
    layers, types = config.num_hidden_layers, config.layer_types
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: num_hidden_layers {layers} is not in 1..{MAX_LAYERS}")
    if types is not None and len(types) != layers:
        raise ModelError(f"{where}: layer_types has {len(types)} entries")
    unknown = set(types or []) - _LAYER_TYPES
    if unknown:
        raise ModelError(f"{where}: layer_types: {sorted(unknown)} are not supported")
    return layers


def uniform_layers(
    config: HfConfig, where: str, window: int | None = None
) -> tuple[LayerSpec, ...]:
    """Return layers that all have the sliding window `window`, or full attention if it is None.
    `layer_types` is ignored. Raises ModelError as `num_layers` does."""
    return (LayerSpec(window or 0),) * num_layers(config, where)


def typed_layers(
    config: HfConfig, where: str, window: int | None, is_sliding: Callable[[int], bool]
) -> tuple[LayerSpec, ...]:
    """Return the layers of a model in which only some layers have the sliding window `window`.

    `layer_types` of the config says which layers have it; if the key is absent, `is_sliding(layer
    index)` decides. Raises ModelError as `num_layers` does.
    """
    layers = range(num_layers(config, where))
    if config.layer_types is None:
        sliding = [is_sliding(layer) for layer in layers]
    else:
        sliding = [kind == SLIDING for kind in config.layer_types]
    return tuple(LayerSpec(window or 0) if slides else LayerSpec() for slides in sliding)


def all_but_last_of(period: int | None, where: str) -> Callable[[int], bool]:
    """Return a function that tells for a layer index whether the layer has a sliding window: all
    layers do except the last one of each `period` layers. Raises ModelError if the period,
    `sliding_window_pattern`, is not positive."""
    period = period or 0
    if period < 1:
        raise ModelError(f"{where}: sliding_window_pattern {period} is not positive")
    return lambda layer: (layer + 1) % period != 0
