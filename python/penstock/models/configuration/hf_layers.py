"""The layers of a decoder from config.json: which ones have a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.hf_rope import FULL, SLIDING
from penstock.models.decoder.spec import MAX_LAYERS, LayerSpec

_LAYER_TYPES: Final = frozenset({FULL, SLIDING})


def num_layers(config: HfConfig, where: str) -> int:
    """Return `num_hidden_layers`. Raises ModelError if it is out of range or `layer_types` does not
    fit."""
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
    """Return layers that all have the same window, or none, whatever `layer_types` says. Raises
    ModelError as `num_layers` does."""
    return (LayerSpec(window or 0),) * num_layers(config, where)


def typed_layers(
    config: HfConfig, where: str, window: int | None, is_sliding: Callable[[int], bool]
) -> tuple[LayerSpec, ...]:
    """Return the layers of a model in which some use a sliding window.

    `layer_types` of the config names them; without it, `is_sliding` decides by the layer's index.
    Raises ModelError as `num_layers` does.
    """
    layers = range(num_layers(config, where))
    if config.layer_types is None:
        sliding = [is_sliding(layer) for layer in layers]
    else:
        sliding = [kind == SLIDING for kind in config.layer_types]
    return tuple(LayerSpec(window or 0) if slides else LayerSpec() for slides in sliding)


def all_but_last_of(period: int | None, where: str) -> Callable[[int], bool]:
    """Return the rule that the last layer of each `period` layers has no window. Raises ModelError
    if the period, `sliding_window_pattern`, is not positive."""
    period = period or 0
    if period < 1:
        raise ModelError(f"{where}: sliding_window_pattern {period} is not positive")
    return lambda layer: (layer + 1) % period != 0
