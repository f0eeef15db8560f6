"""Random inputs of test cases, made from a seed: activations, weights in all formats, steps over a
paged KV cache.

All tensors are on the CPU. Memory that an op must not read holds NaN, or an index that leads to
NaN, so that reading it makes a result NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from penstock.kernels.cache_slots import write_slots
from penstock.kernels.step_inputs import SCALE_BYTES, LayerCache, StepInputs
from penstock.kernels.weights import (
    FLOAT4_VALUES,
    FLOAT4_ZERO,
    IQ4_VALUES,
    Affine,
    Dense,
    Float8,
    FloatName,
)

_ACTIVATION_GROUP = 32
INT8_POISON = -1
"""Fills an int8 cache with elements of -1 and, as float32, NaN scales."""


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Apply `change` to every tensor in a nested structure of dicts, tuples and dataclasses, and
    return the structure of the results."""
    return map_leaves(value, torch.Tensor, change)


def map_leaves(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every value of type `kind` in a nested structure of dicts, tuples and
    dataclasses, and return the structure of the results. Other values are kept."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: map_leaves(item, kind, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(item, kind, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in dataclasses.fields(value)]
        return type(value)(
            **{name: map_leaves(getattr(value, name), kind, change) for name in names}
        )
    return value


class RandomInputs:
    """Makes random torch tensors and weights from one seed."""

    def __init__(self, seed: int) -> None:
        self.torch = torch.Generator().manual_seed(seed)
        self.numpy = np.random.default_rng(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        """Return a float32 tensor of standard normal numbers."""
        return torch.randn(shape, generator=self.torch)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return an int32 tensor of uniform integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.torch, dtype=torch.int32)

    def quantizable(self, rows: int, width: int) -> torch.Tensor:
        """Return [rows, width] float32 activations that every correct int8 quantization in groups
        of 32 rounds to the same integers.

        Each value is within 0.4 quanta of an integer, and the largest value of a group is 127
        quanta. Rows differ in magnitude. If there are several rows, the first group of the first
        row is zero.
        """
        groups = width // _ACTIVATION_GROUP
        shape = (rows, groups, _ACTIVATION_GROUP)
        quanta = self.integers(-126, 127, *shape) + 0.8 * torch.rand(shape, generator=self.torch)
        quanta -= 0.4
        peak = self.integers(0, _ACTIVATION_GROUP, rows, groups, 1).long()
        quanta.scatter_(2, peak, 127.0)
        scales = torch.exp(self.normal(rows, groups, 1)) / 64
        values = quanta * scales
        if rows > 1:
            values[0, 0] = 0
        return values.reshape(rows, width)

    def dense(self, rows: int, width: int, dtype: FloatName) -> Dense:
        """Return a random matrix [rows, width] of `dtype` with a standard deviation of
        1 / sqrt(width)."""
        values = self.normal(rows, width) / width**0.5
        if dtype == "bf16":
            bits = values.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
            return Dense(bits, "bf16")
        return Dense(values.numpy().astype(np.float16 if dtype == "f16" else np.float32), dtype)

    def affine(self, rows: int, width: int, like: str) -> Affine:
        """Return an integer matrix [rows, width] as the loader represents a matrix of the source
        format `like` ("q4_0", "int4_g128", ...)."""
        bits, group, zero_point, form = _AFFINE_FORMS[like]
        packed = width // 2 if bits == 4 else width
        top = 256 if bits == 4 else _TOPS.get(like, 256)
        q = self.numpy.integers(0, top, (rows, packed), dtype=np.uint8)
        if like.startswith("iq4"):
            q = IQ4_VALUES[q % 16]
        if like == "mxfp4":
            exponent = self.numpy.integers(-10, -6, (rows, -(-width // group)))
            scale = (2.0**exponent).astype(np.float16)
            return Affine(bits, group, FLOAT4_VALUES[q % 16], scale, None, zero_point)
        if like.startswith("iq2"):
            q = _IQ2_VALUES[q % len(_IQ2_VALUES)]
        if like == "nvfp4":
            q = FLOAT4_VALUES[q % 16]
        levels = 16 if bits == 4 else top
        unit = 4 / levels / width**0.5
        groups = (rows, -(-width // group))
        if form != "two-level":
            dtype = np.float32 if form == "float32" else np.float16
            scale = self.numpy.uniform(0.5, 1.5, groups) * unit
            minimum = None if zero_point else (-scale * levels / 2).astype(dtype)
            return Affine(bits, group, q, scale.astype(dtype), minimum, zero_point)
        supers = (rows, -(-width // 256))
        super_scale = (self.numpy.uniform(0.5, 1.5, supers) * unit / 32).astype(np.float16)
        if zero_point:
            multiplier = self.numpy.integers(-64, 64, groups, dtype=np.int8)
            return Affine(bits, group, q, multiplier, None, zero_point, super_scale)
        multiplier = self.numpy.integers(0, 64, groups, dtype=np.uint8)
        lower = self.numpy.integers(0, 64, groups, dtype=np.uint8)
        super_minimum = (-super_scale.astype(np.float64) * levels / 2).astype(np.float16)
        return Affine(bits, group, q, multiplier, lower, 0, super_scale, super_minimum)

    def float8(self, rows: int, width: int, block: tuple[int, int]) -> Float8:
        """Return a matrix [rows, width] of 8-bit floats whose elements are of the size of 1 /
        sqrt(width). The scales of its blocks differ by up to a factor of eight, so that a kernel
        that applies the wrong scale fails."""
        codes = (100 * self.normal(rows, width)).clamp(-448, 448).to(torch.float8_e4m3fn)
        grid = (-(-rows // block[0]), -(-width // block[1]))
        scale = 2 ** self.numpy.uniform(-1.5, 1.5, grid) / (100 * width**0.5)
        return Float8(codes.view(torch.uint8).numpy(), scale.astype(np.float32), block)

    def representable(self, rows: int, width: int, group: int) -> torch.Tensor:
        """Return [rows, width] float32 activations that do not change if they are quantized to
        8-bit floats with one scale per `group` columns.

        Each value is an 8-bit float times a power of two that its group shares. The largest 8-bit
        float of a group is 448 or -448. If there are several rows, the first group of the first row
        is zero.
        """
        groups = -(-width // group)
        values = (100 * self.normal(rows, groups, group)).clamp(-448, 448)
        values = values.to(torch.float8_e4m3fn).float()
        signs = 2.0 * self.integers(0, 2, rows, groups) - 1
        peak = self.integers(0, min(group, width - (groups - 1) * group), rows, groups, 1).long()
        values.scatter_(2, peak, 448.0 * signs[:, :, None])
        values *= 2.0 ** self.integers(-9, -5, rows, groups, 1)
        if rows > 1:
            values[0, 0] = 0
        return values.reshape(rows, groups * group)[:, :width].contiguous()

    def step(self, chunks: Sequence[tuple[int, int]], block_size: int) -> StepInputs[Any]:
        """Return the inputs of a step over scattered KV blocks. `chunks`: for each sequence, its
        tokens in the cache before the step and its tokens in the step.

        Block 0 belongs to no sequence; the entries of a block table past the context point to block
        0.
        """
        contexts = [before + now for before, now in chunks]
        blocks = [-(-context // block_size) for context in contexts]
        shuffled = 1 + torch.randperm(sum(blocks), generator=self.torch)
        tables = torch.zeros(len(chunks), max(blocks) + 1, dtype=torch.int32)
        positions, slots, taken = [], [], 0
        for row, ((before, _), context) in enumerate(zip(chunks, contexts, strict=True)):
            table = shuffled[taken : taken + blocks[row]]
            taken += blocks[row]
            tables[row, : blocks[row]] = table
            place = torch.arange(before, context)
            positions.append(place)
            slots.append(table[place // block_size] * block_size + place % block_size)
        starts = [0, *np.cumsum([now for _, now in chunks]).tolist()]
        return StepInputs(
            tokens=self.integers(0, 100, starts[-1]),
            positions=torch.cat(positions).int(),
            slots=torch.cat(slots).int(),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=tables,
            sample_rows=torch.tensor(starts[1:], dtype=torch.int32) - 1,
        )

    def cache(
        self, step: StepInputs[Any], block_size: int, heads: tuple[int, int], dtype: torch.dtype
    ) -> LayerCache[Any]:
        """Return a KV cache with random keys and values for the contexts of `step`, and NaN
        everywhere else: in an int8 cache bytes that make NaN scales. `heads`: (K, D)."""
        count = int(step.block_tables.max()) + 2
        kv_heads, dim = heads
        cache = self._unwritten(count, block_size, heads, dtype)
        for table, context in zip(step.block_tables, step.context_lens.tolist(), strict=True):
            place = torch.arange(context)
            block, offset = table[place // block_size].long(), place % block_size
            keys, values = (self.normal(context, kv_heads, dim) for _ in range(2))
            if dtype == torch.int8:  # scales that differ by a factor of eight
                keys *= 2 ** (3 * torch.rand(context, kv_heads, 1, generator=self.torch) - 1.5)
                values *= 2 ** (3 * torch.rand(context, kv_heads, 1, generator=self.torch) - 1.5)
            write_slots(cache, block, offset, keys, values)
        return cache

    def _unwritten(
        self, count: int, block_size: int, heads: tuple[int, int], dtype: torch.dtype
    ) -> LayerCache[Any]:
        kv_heads, dim = heads
        width = dim + SCALE_BYTES if dtype == torch.int8 else dim
        shapes = (count, kv_heads, width, block_size), (count, kv_heads, block_size, width)
        poison = INT8_POISON if dtype == torch.int8 else float("nan")
        return LayerCache(*(torch.full(shape, poison, dtype=dtype) for shape in shapes))


# One more than the largest 8-bit integer of a format, if it is not 255.
_TOPS = {"q5_0": 32, "q5_1": 32, "q5_k": 32, "q6_k": 64}

_IQ2_VALUES = np.array([0, 18, 35, 51, 68, 86], np.uint8)

# source format -> bits, group size, zero point, layout of the scales (see `Affine`)
_AFFINE_FORMS: dict[str, tuple[Any, Any, int, str]] = {
    "q4_0": (4, 32, 8, "direct"),
    "q4_1": (4, 32, 0, "direct"),
    "q5_0": (8, 32, 16, "direct"),
    "q5_1": (8, 32, 0, "direct"),
    "q8_0": (8, 32, 128, "direct"),
    "q2_k": (4, 16, 0, "two-level"),
    "q3_k": (4, 16, 4, "two-level"),
    "q4_k": (4, 32, 0, "two-level"),
    "q5_k": (8, 32, 0, "two-level"),
    "q6_k": (8, 16, 32, "two-level"),
    "iq4_nl": (8, 32, 128, "direct"),
    "iq4_xs": (8, 32, 128, "two-level"),
    "mxfp4": (8, 32, FLOAT4_ZERO, "direct"),
    "nvfp4": (8, 16, FLOAT4_ZERO, "float32"),
    "iq1_m": (4, 16, 0, "float32"),
    "iq2_xxs": (8, 32, 43, "two-level"),
    "iq2_xs": (8, 16, 43, "two-level"),
    "iq2_tiny": (8, 16, 43, "float32"),
    "iq3_s": (4, 32, 0, "float32"),
    "int4_zero_1": (4, 32, 1, "direct"),
    "int4_g128": (4, 128, 8, "direct"),
    "int4_g96_minima": (4, 96, 0, "direct"),
    "int8_rows": (8, 1 << 20, 128, "direct"),
}
