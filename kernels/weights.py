"""The weights of ops as plain arrays: dense, affine integers, and 8-bit floats.

Every integer format of every file is loaded into `Affine`; kernels know no other. `Float8` is for
kernels on a GPU; a CPU gets `Dense` instead. `Linear` adds the bias. Implementations pack weights
once at load (`Ops.pack_linear`) for their instructions; the packed form is private to them.
Matrices are [N, C], N output and C input columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

FloatName = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True, slots=True)
class Dense:
    """`data: [N, C]` float32 or float16; bfloat16 is stored as its bits in uint16."""

    data: npt.NDArray[np.generic]
    dtype: FloatName

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]


@dataclass(frozen=True, slots=True)
class Affine:
    """w[n, c] = scale[n, c // group] * q[n, c] + minimum[n, c // group], exactly in real numbers.

    `bits` 4: `q: [N, C / 2]` uint8, element c in the low nibble of byte c // 2 for even c, in the
    high one for odd c. `bits` 8: `q: [N, C]` uint8, 0..255 (a signed source is stored + 128 with
    its -128 * scale in `minimum`; 5- and 6-bit sources and IQ4 are stored in 8 bits). `group` is 16
    or a multiple of 32; C is a multiple of 16 or 32. The last group of a row may have fewer
    columns, and a group of more columns than C is all of them.

    The scales have one of two exact forms:
      direct:    `scale`, `minimum`: [N, ceil(C / group)] float16 or float32, float32 if either is;
                 `super_scale` is None.
      two-level: `group` is 16 or 32, `scale`, `minimum`: [N, C / group] int8 or uint8 multipliers,
                 with scale = super_scale * multiplier, minimum = super_minimum * multiplier, and
                 `super_scale`, `super_minimum`: [N, ceil(C / 256)] float16 (the K-quants).
    A `minimum` of None means -zero_point * scale with `zero_point` (8 for Q4_0, 16 for Q5_0,
    32 for Q6_K, 128 for Q8_0): it is neither stored nor read.
    """

    bits: Literal[4, 8]
    group: int
    q: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.generic]
    minimum: npt.NDArray[np.generic] | None = None
    zero_point: int = 0
    super_scale: npt.NDArray[np.float16] | None = None
    super_minimum: npt.NDArray[np.float16] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.q.shape[0], self.q.shape[1] * (2 if self.bits == 4 else 1)


IQ4_VALUES = np.array(
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241], np.uint8
)
"""The values of the 4-bit codes of GGML's IQ4 types, plus 128: steps that grow away from zero. An
`Affine` of 8 bits with only these values may be stored as their indices."""

FLOAT4_ZERO = 76
"""The integer that represents 0 in a matrix of 4-bit floats."""
FLOAT4_VALUES = np.array(
    [FLOAT4_ZERO + sign * value for sign in (1, -1) for value in (0, 1, 2, 3, 4, 6, 8, 12)],
    np.uint8,
)
"""The values of the codes of 4-bit floats (e2m1 of the OCP microscaling specification), doubled,
plus FLOAT4_ZERO: sign, two bits of exponent with bias 1, one of mantissa. An `Affine` of 8 bits
with that zero point and only these values may be stored as their indices."""


@dataclass(frozen=True, slots=True)
class Float8:
    """w[n, c] = scale[n // rows, c // columns] * e4m3(codes[n, c]), with `block` = (rows, columns).

    `codes: [N, C]` uint8: e4m3fn of the OCP 8-bit floating point specification, a sign, four bits
    of exponent with bias 7, three of mantissa, no infinities. NaN (0x7F, 0xFF) does not occur.
    `scale: [ceil(N / rows), ceil(C / columns)]` float32. A block of (1, C) is a scale per row, (N,
    C) one for all, (128, 128) one per tile; the last tile may be cut off.
    """

    codes: npt.NDArray[np.uint8]
    scale: npt.NDArray[np.float32]
    block: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


Matrix: TypeAlias = "Dense | Affine | Float8"


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x @ concat(parts).T + bias. `parts` have the same C (q, k, v of one layer; gate and up)
    and may differ in kind. `bias: [sum N]` float32 or None."""

    parts: tuple[Matrix, ...]
    bias: npt.NDArray[np.float32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


ExpertActivation = Literal["silu", "swiglu_oai"]
"""The function of gate and up. silu: silu(gate) * up. swiglu_oai (gpt-oss): (up + 1) * gate *
sigmoid(1.702 * gate), gate clamped to at most 7 and up to -7 .. 7."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forward layers of a layer's E experts, all of the same size: `gate[e]` and `up[e]`
    [F, W], `down[e]` [W, F]. `gate_up_bias: [E, 2 F]`, gate and then up, and `down_bias: [E, W]`,
    float32: both or neither."""

    gate: tuple[Matrix, ...]
    up: tuple[Matrix, ...]
    down: tuple[Matrix, ...]
    gate_up_bias: npt.NDArray[np.float32] | None = None
    down_bias: npt.NDArray[np.float32] | None = None
    activation: ExpertActivation = "silu"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, F, W)."""
        return len(self.gate), *self.gate[0].shape
