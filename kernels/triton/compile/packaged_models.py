"""The models for which kernels are packaged: their sizes, the integer types of GGUF files, the
extents of steps, and meta tensors of these sizes."""

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
    """The sizes of a decoder on which its compiled kernels depend.

    `width`, `ff`: hidden size and feed-forward size (of one expert if there are experts).
    `head_norm`: queries and keys are normalised per head.
    `experts`, `per_token`: experts of a layer, and experts that each token chooses; 0 for a dense
    model.
    `oai`: the model is gpt-oss, which has biases and attention sinks.
    """

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
    """An integer type of GGUF files as it is packed. `bits`: of an integer. `group`: columns that
    share a scale. `scale`: type of the scales."""

    bits: int
    group: int
    zero_point: int | None  # None: groups have minima
    scale: torch.dtype = torch.float16

    def packed(self, rows: int, width: int) -> PackedAffine:
        """Return a meta matrix [rows, width] of this type."""
        scale = empty(width // self.group, rows, dtype=self.scale)
        minimum = scale if self.zero_point is None else None
        q = empty(rows, width * self.bits // 8, dtype=torch.uint8)
        return PackedAffine(q, scale, minimum, self.bits, self.group, self.zero_point or 0)

    def stacked(self, count: int, rows: int, width: int) -> AffineStack:
        """Return a meta stack of `count` matrices [rows, width] of this type."""
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
    """The extents of a step: `tokens` tokens in `rows` chunks, each of which samples a token."""

    tokens: int
    rows: int


# Each selects other tiles: one token, one token per row, short chunks, one long chunk.
STEPS = (
    Extents(1, 1),
    Extents(40, 40),
    Extents(40, 2),
    Extents(2048, 1),
    Extents(8192, 1),
)
