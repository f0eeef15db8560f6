"""Divides an adapter among tensor parallel ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.adapters.adapter import Adapter, Factors
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.loader.tensor_parallel import ShardSlices, shard_slices


def shard_adapter(adapter: Adapter, spec: DecoderSpec, rank: int, count: int) -> Adapter:
    """Return the shard of an adapter that rank `rank` of `count` holds. `spec`: the spec of the
    whole model.

    A projection that is split by rows has all of `a` and the rank's rows of `b`. A projection that
    is split by columns has the rank's columns of `a` and all of `b`; its updates are partial sums,
    to be added over all ranks. Raises ModelError if the model cannot be divided.
    """
    layers = tuple(
        {name: _shard(name, factors, share) for name, factors in layer.items()}
        for layer, share in zip(adapter.layers, shard_slices(spec, rank, count), strict=True)
    )
    size_bytes = sum(one.a.nbytes + one.b.nbytes for layer in layers for one in layer.values())
    return replace(adapter, layers=layers, size_bytes=size_bytes)


def _shard(name: str, factors: Factors, share: ShardSlices) -> Factors:
    if name in ("o", "down"):
        columns = share.q if name == "o" else share.ff
        return Factors(np.ascontiguousarray(factors.a[:, columns]), factors.b)
    rows = {"q": share.q, "k": share.kv, "v": share.kv, "gate": share.ff, "up": share.ff}
    return Factors(factors.a, factors.b[rows[name]])
