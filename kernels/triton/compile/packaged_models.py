"""The models that packaged kernels serve: their sizes, types of GGUF files and extents of steps,
and meta tensors of those sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from penstock.kernels.triton.matmul.packed_weights import PackedAffine
from penstock.kernels.triton.moe.packed_experts import AffineStack
from penstock.kernels.weights import FLOAT4_ZERO

ACTIVATIONS = torch.bfloat16


def empty(*shape: int, dtype: torch.dtype = ACTIVATIONS) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def ints(*shape: int) -> Any:
    return empty(*shape, dtype=torch.int32)


def floats(*shape: int) -> Any:
    return empty(*shape, dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder on which its compiled kernels depend. With `experts` each feed-forward
    layer is a mixture: `per_token` of them, of width `ff`; with `oai` as in gpt-oss, whose
    attention has sinks."""

    width: int
    heads: tuple[int, int, int]  # query heads, KV heads, head dimension
    ff: int
    vocab: int
    head_norm: bool
    experts: int = 0
    per_token: int = 0
    oai: bool = False
    blocks: bool = False  # the model also exists in 8-bit floats with block scales


MODELS = {
    "Qwen3-0.6B": Sizes(1024, (16, 8, 128), 3072, 151936, head_norm=True),
    "Qwen3-1.7B": Sizes(2048, (16, 8, 128), 6144, 151936, head_norm=True),
    "Qwen3-4B": Sizes(2560, (32, 8, 128), 9728, 151936, head_norm=True),
    "Qwen3-8B": Sizes(4096, (32, 8, 128), 12288, 151936, head_norm=True, blocks=True),
    "Qwen3-14B": Sizes(5120, (40, 8, 128), 17408, 151936, head_norm=True),
    "Qwen3-30B-A3B": Sizes(
        2048, (32, 4, 128), 768, 151936, head_norm=True, experts=128, per_token=8, blocks=True
    ),
    "gpt-oss-20b": Sizes(
        2880, (64, 8, 64), 2880, 201088, head_norm=False, experts=32, per_token=4, oai=True
    ),
    "gpt-oss-120b": Sizes(
        2880, (64, 8, 64), 2880, 201088, head_norm=False, experts=128, per_token=4, oai=True
    ),
    "Llama-3.2-1B": Sizes(2048, (32, 8, 64), 8192, 128256, head_norm=False),
    "Llama-3.2-3B": Sizes(3072, (24, 8, 128), 8192, 128256, head_norm=False),
    "Llama-3.1-8B": Sizes(4096, (32, 8, 128), 14336, 128256, head_norm=False, blocks=True),
    "Mistral-7B-v0.3": Sizes(4096, (32, 8, 128), 14336, 32768, head_norm=False, blocks=True),
}


@dataclass(frozen=True, slots=True)
class Integers:
    """A type of GGUF file as it is stored: bits, columns of a group, whether it has minima, and the
    kind of its scales."""

    bits: int
    group: int
    zero_point: int | None  # None: it has minima
    scale: torch.dtype = torch.float16

    def packed(self, rows: int, width: int) -> PackedAffine:
        """Return a matrix of this type."""
        scale = empty(width // self.group, rows, dtype=self.scale)
        minimum = scale if self.zero_point is None else None
        q = empty(rows, width * self.bits // 8, dtype=torch.uint8)
        return PackedAffine(q, scale, minimum, self.bits, self.group, self.zero_point or 0)

    def stacked(self, count: int, rows: int, width: int) -> AffineStack:
        """Return `count` matrices of this type, stacked."""
        scale = empty(count, width // self.group, rows, dtype=self.scale)
        minimum = scale if self.zero_point is None else None
        q = empty(count, rows, width * self.bits // 8, dtype=torch.uint8)
        return AffineStack(q, scale, minimum, self.bits, self.group, self.zero_point or 0)


INTEGERS = {
    "Q4_0": Integers(4, 32, 8),
    "Q4_1": Integers(4, 32, None),
    "Q8_0": Integers(8, 32, 128),
    "Q4_K": Integers(4, 32, None, torch.float32),
    "Q5_K": Integers(8, 32, None, torch.float32),
    "Q6_K": Integers(8, 16, 32, torch.float32),
    "MXFP4": Integers(8, 32, FLOAT4_ZERO),
}


@dataclass(frozen=True, slots=True)
class Extents:
    """The extents of a step: `tokens` in `rows` chunks, all of which are sampled."""

    tokens: int
    rows: int


# One per way that extents change a tile: few tokens and many, one per row, short chunks, long.
STEPS = (Extents(1, 1), Extents(40, 40), Extents(40, 2), Extents(2048, 1))
