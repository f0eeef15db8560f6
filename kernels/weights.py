"""The weights that ops take, as plain arrays: one dense kind, one affine integer kind, and one of
8-bit floats.

Every integer format of every file is loaded into `Affine`; kernels know no other. `Float8` is for
kernels on a GPU: a CPU is given it as `Dense`. `Linear` adds the bias. Implementations pack them
once at load (`Ops.pack_linear`) into what their instructions want; the packed form is theirs alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

FloatName = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True, slots=True)
class Dense:
    """`data: [N, K]` float32 or float16; bfloat16 is held as its bits in uint16."""

    data: npt.NDArray[np.generic]
    dtype: FloatName

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]


@dataclass(frozen=True, slots=True)
class Affine:
    """w[n, k] = scale[n, k // group] * q[n, k] + minimum[n, k // group], exactly in real numbers.

    `bits` 4: `q: [N, K / 2]` uint8, element k in the low nibble of byte k // 2 for even k, in the
    high one for odd k. `bits` 8: `q: [N, K]` uint8, 0..255 (a signed source is stored + 128 with
    its -128 * scale in `minimum`; 5- and 6-bit sources and IQ4 are held in 8 bits).
    `group` is 16 or a multiple of 32; K is a multiple of 16 or 32. The last group of a row may have
    fewer columns, and a group of more columns than K is all of them.

    The scales come in one of two exact forms:
      direct:    `scale`, `minimum`: [N, ceil(K / group)] float16 or float32, held as float32 where
                 either is; `super_scale` is None.
      two-level: `group` is 16 or 32, `scale`, `minimum`: [N, K / group] int8 or uint8 multipliers,
                 with scale = super_scale * multiplier, minimum = super_minimum * multiplier, where
                 `super_scale`, `super_minimum`: [N, ceil(K / 256)] float16 (the K-quants).
    A `minimum` of None means -zero_point * scale with `zero_point` (8 for Q4_0, 16 for Q5_0,
    32 for Q6_K, 128 for Q8_0): nothing to store, nothing to read.
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
"""What the nibbles of GGML's IQ4 types stand for, 128 added: steps that widen away from zero. An
`Affine` of 8 bits that has no other values may be held as their places."""

FLOAT4_ZERO = 76
"""What stands for 0 in a matrix of 4-bit floats."""
FLOAT4_VALUES = np.array(
    [FLOAT4_ZERO + sign * value for sign in (1, -1) for value in (0, 1, 2, 3, 4, 6, 8, 12)],
    np.uint8,
)
"""What the codes of 4-bit floats (e2m1 of the OCP microscaling specification) stand for, doubled:
sign, two bits of exponent with bias 1, one of mantissa. An `Affine` of 8 bits and the zero point
FLOAT4_ZERO that has no other values may be held as their places too."""


@dataclass(frozen=True, slots=True)
class Float8:
    """w[n, k] = scale[n // rows, k // columns] * e4m3(codes[n, k]), with `block` = (rows, columns).

    `codes: [N, K]` uint8: e4m3fn of the OCP 8-bit floating point specification, a sign, four bits
    of exponent with bias 7, three of mantissa, no infinities. NaN (0x7F, 0xFF) does not occur.
    `scale: [ceil(N / rows), ceil(K / columns)]` float32. A block of (1, K) is a scale for each row,
    (N, K) one for all, (128, 128) one for each tile, of which the last may be cut off.
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
    """y = x @ concat(parts).T + bias. `parts` share K (q, k, v of one layer; gate and up) and may
    differ in kind. `bias: [sum N]` float32 or None."""

    parts: tuple[Matrix, ...]
    bias: npt.NDArray[np.float32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


ExpertActivation = Literal["silu", "swiglu_oai"]
"""What is made of gate and up. silu: silu(gate) * up. swiglu_oai: that of gpt-oss, (up + 1) * gate
* sigmoid(1.702 * gate), where gate is at most 7 and up within -7 and 7."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forwards of a layer's E experts, which are alike in their sizes: of expert e
    `gate[e]` and `up[e]` [F, W], `down[e]` [W, F]. `gate_up_bias: [E, 2 F]`, gate and then up, and
    `down_bias: [E, W]`, float32: both or neither."""

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
