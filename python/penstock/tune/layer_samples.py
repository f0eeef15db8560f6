"""Chooses the layers of a model whose time is measured, and extrapolates it to all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.models.decoder.spec import DecoderSpec, LayerSpec

WHOLE_BYTES: Final = 1 << 30
"""A model of at most this size is measured whole."""

COLD_BYTES: Final = 96 << 20
"""Layers of one kind that are measured have at least this size together, so that they are read from
memory and not from a cache of the processor."""

_TIMES: Final = 4
"""The largest measured number of layers of a kind, as a multiple of the smallest. The time of a
layer follows from their difference, so its error shrinks with it."""


@dataclass(frozen=True, slots=True)
class LayerSamples:
    """Smaller models whose times give that of the whole model.

    - `base`: the indices of the layers of the first one, some of each kind.
    - `more`: for each further one, its additional layers, all of one kind, and the number of times
      that these layers must be added to the base to give all layers of the kind.
    """

    base: tuple[int, ...]
    more: tuple[tuple[tuple[int, ...], float], ...] = ()

    @property
    def models(self) -> list[tuple[int, ...]]:
        """The layers of each model to measure, the base first."""
        return [self.base, *(self.base + layers for layers, _ in self.more)]

    @property
    def num_layers(self) -> int:
        """The number of layers of the largest model to measure."""
        return max(map(len, self.models))

    def whole_time(self, times: Sequence[float]) -> float:
        """Return the time of the whole model, given those of `models`."""
        first, *others = times
        added = (
            max(time - first, 0.0) * factor
            for time, (_, factor) in zip(others, self.more, strict=True)
        )
        return first + sum(added)


def choose_samples(
    spec: DecoderSpec, outside_bytes: int, layer_bytes: Sequence[int], most_bytes: int
) -> LayerSamples | None:
    """Return the layers to measure, None if too few of them fit in `most_bytes`.

    `outside_bytes`, `layer_bytes`: the packed weights outside of layers and in each layer.
    """
    whole = outside_bytes + sum(layer_bytes)
    everything = LayerSamples(tuple(range(len(spec.layers))))
    if whole <= min(WHOLE_BYTES, most_bytes):
        return everything
    if not _is_divisible(spec):
        return everything if whole <= most_bytes else None
    kinds = _kinds(spec)
    room = max(most_bytes - outside_bytes, 0) // len(kinds)
    base: list[int] = []
    more = []
    for members in kinds:
        size = max(layer_bytes[members[0]], 1)
        most = min(_TIMES * -(-COLD_BYTES // size), room // size)
        if len(members) <= most:
            base += members
        elif most >= 2:
            few = max(most // _TIMES, 1)
            base += members[:few]
            more.append((members[few:most], (len(members) - few) / (most - few)))
        else:
            return None
    return LayerSamples(tuple(base), tuple(more))


def _is_divisible(spec: DecoderSpec) -> bool:
    """Return whether some of the layers are a model: none reads the KV cache of another, and no
    table has a part for each layer."""
    shares = any(layer.attention.cache_of is not None for layer in spec.layers)
    return not shares and spec.per_layer_inputs is None and spec.altup is None


def _kinds(spec: DecoderSpec) -> list[tuple[int, ...]]:
    """Return the indices of the layers of each kind."""
    kinds: dict[LayerSpec, list[int]] = {}
    for index, layer in enumerate(spec.layers):
        kinds.setdefault(layer, []).append(index)
    return list(map(tuple, kinds.values()))
