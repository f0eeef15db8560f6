"""Divides an adapter among tensor parallel ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from penstock.adapters.adapter import Adapter, Factors
from penstock.models.decoder.lora_block import LoraBlock
from penstock.models.decoder.lora_targets import lora_blocks
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.loader.tensor_parallel import shard_spec


def shard_adapter(adapter: Adapter, spec: DecoderSpec, rank: int, count: int) -> Adapter:
    """Return the shard of an adapter that rank `rank` of `count` holds. `spec`: the spec of the
    whole model.

    A part that is split by rows has all of `a` and the rank's rows of `b`. A part that is split by
    columns has the rank's columns of `a` and all of `b`; its updates are partial sums, to be added
    over all ranks. Raises ModelError if the model cannot be divided.
    """
    whole, own = lora_blocks(spec), lora_blocks(shard_spec(spec, count, spec.architecture))
    layers = tuple(
        _shard(layer, *blocks, rank, count)
        for layer, blocks in zip(adapter.layers, zip(whole, own, strict=True), strict=True)
    )
    size_bytes = sum(one.a.nbytes + one.b.nbytes for layer in layers for one in layer.values())
    return replace(adapter, layers=layers, size_bytes=size_bytes)


def _shard(
    layer: Mapping[str, Factors], whole: LoraBlock, own: LoraBlock, rank: int, count: int
) -> dict[str, Factors]:
    shards = {}
    for name, factors in layer.items():
        (rows, columns), (own_rows, own_columns) = whole.part(name), own.part(name)
        a = factors.a[:, _slice(columns, own_columns, rank, count)]
        b = factors.b[_slice(rows, own_rows, rank, count)]
        shards[name] = Factors(np.ascontiguousarray(a), b)
    return shards


def _slice(whole: int, own: int, rank: int, count: int) -> slice:
    """Return the elements that a rank holds. If the parts of `own` elements are fewer than the
    ranks, several ranks hold the same part."""
    start = rank * (whole // own) // count * own
    return slice(start, start + own)
