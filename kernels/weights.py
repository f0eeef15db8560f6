"""The weights of ops as numpy arrays: dense, affine integers, and 8-bit floats.

All integer formats of checkpoints are loaded into `Affine`, the only integer layout that kernels
read. `Float8` is used on a GPU; on a CPU, such matrices are loaded as `Dense`. `Linear` combines
matrices and a bias. Implementations pack weights once, at load (`Ops.pack_linear`), for their
instructions; only the implementation knows the packed layout. Matrices are [N, C], with N output
and C input columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

FloatName = Literal["f32", "f16", "bf16"]


@dataclass(frozen=True, slots=True)
class Dense:
    """A matrix of floats.

    `data`: [N, C] float32 or float16; bfloat16 is stored as its bits in uint16.
    `dtype`: the type of the elements.
    """

    data: npt.NDArray[np.generic]
    dtype: FloatName

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape[0], self.data.shape[1]


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix of integers with a scale and a minimum per group of columns.

    w[n, c] = scale[n, c // group] * q[n, c] + minimum[n, c // group], exactly in real numbers.

    `bits` 4: `q: [N, C / 2]` uint8; byte c // 2 has element c in its low nibble for even c, in its
    high nibble for odd c. `bits` 8: `q: [N, C]` uint8, 0..255. Signed integers are stored + 128,
    with -128 * scale in `minimum`; integers of 5 to 7 bits, the IQ types and floats of 4 and
    6 bits are stored in 8 bits. `group` is 16 or a multiple of 32; C is a multiple of 16 or 32. The
    last group of a row may have fewer columns, and a group larger than C covers the whole row.

    Scales and minima are stored in one of two ways:
      direct:    `scale`, `minimum`: [N, ceil(C / group)] float16 or float32, float32 if either is;
                 `super_scale` is None.
      two-level: `group` is 16 or 32, `scale`, `minimum`: [N, C / group] int8 or uint8 multipliers,
                 with scale = super_scale * multiplier, minimum = super_minimum * multiplier, and
                 `super_scale`, `super_minimum`: [N, ceil(C / 256)] float16 (the K-quants).
    If `minimum` is None, the minimum is -zero_point * scale, with `zero_point` 8 for Q4_0, 16 for
    Q5_0, 32 for Q6_K, 128 for Q8_0; kernels then read no minima.
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
"""The values of the 4-bit codes of GGML's IQ4 types, plus 128; the steps grow away from zero. If an
8-bit `Affine` has at most 16 values, packing may store 4-bit indices instead."""

FLOAT4_ZERO = 76
"""The integer that represents 0 in an `Affine` of 4-bit floats."""
FLOAT4_VALUES = np.array(
    [FLOAT4_ZERO + sign * value for sign in (1, -1) for value in (0, 1, 2, 3, 4, 6, 8, 12)],
    np.uint8,
)
"""The values of the codes of 4-bit floats (e2m1 of the OCP microscaling specification: sign, two
bits of exponent with bias 1, one bit of mantissa), doubled, plus FLOAT4_ZERO."""


@dataclass(frozen=True, slots=True)
class Float8:
    """A matrix of 8-bit floats with a scale per block.

    w[n, c] = scale[n // rows, c // columns] * e4m3(codes[n, c]), with `block` = (rows, columns).

    `codes`: [N, C] uint8, e4m3fn of the OCP 8-bit floating point specification: a sign, four bits
        of exponent with bias 7, three bits of mantissa, no infinities. NaN (0x7F, 0xFF) does not
        occur.
    `scale`: [ceil(N / rows), ceil(C / columns)] float32.
    `block`: (1, C) for a scale per row, (N, C) for a single scale, (128, 128) for a scale per tile;
        the last tile may be smaller.
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
    """A linear layer: y = x @ concat(parts).T + bias.

    `parts`: matrices with the same C (q, k, v of one layer; gate and up), possibly in different
        formats.
    `bias`: [sum of N] float32, or None.
    `rounding`: with "f16", products of float16 parts may round weights and activations if their
        error stays as small as that of float16 arithmetic, which is twice as fast on some
        processors. With AVX2 they always do.
    `names`: the names of the tensors of the parts in the checkpoint, for statistics of the layer's
        input. Empty if none are collected.
    """

    parts: tuple[Matrix, ...]
    bias: npt.NDArray[np.float32] | None = None
    rounding: Literal["none", "f16"] = "none"
    names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]


ExpertActivation = Literal["silu", "gelu_tanh", "relu_squared", "swiglu_oai"]
"""The function between the two layers of an expert. It is applied to the gate and multiplied by up
or, if the experts have no gate, applied to up. "relu_squared": max(x, 0)^2. "swiglu_oai" (gpt-oss)
needs gates: (up + 1) * gate * sigmoid(1.702 * gate), with gate clamped to at most 7 and up to
-7 .. 7."""

SharesScale = Literal["output", "input"]
"""Whether the shares of a token scale the output of its experts or their input (Llama 4)."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The E experts of a layer: feed-forward layers of the same size.

    `gate`, `up`: for each expert a matrix [F, W]. `gate` is empty if the experts have no gates.
    `down`: for each expert a matrix [W, F].
    `gate_up_bias`: [E, 2 F] float32, the biases of gate, then of up; [E, F] without gates. None if
        and only if `down_bias` is None.
    `down_bias`: [E, W] float32.
    `shares_scale`: see `SharesScale`.
    `opening_names`, `down_name`: the names of the tensors in the checkpoint, as `Linear.names`. {}
        is the number of the expert.
    """

    gate: tuple[Matrix, ...]
    up: tuple[Matrix, ...]
    down: tuple[Matrix, ...]
    gate_up_bias: npt.NDArray[np.float32] | None = None
    down_bias: npt.NDArray[np.float32] | None = None
    activation: ExpertActivation = "silu"
    shares_scale: SharesScale = "output"
    opening_names: tuple[str, ...] = ()
    down_name: str = ""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The sizes (E, F, W)."""
        return len(self.up), *self.up[0].shape

    @property
    def opening(self) -> tuple[tuple[Matrix, ...], ...]:
        """The matrices of each expert's first layer: (gate, up), or (up,) without gates."""
        if not self.gate:
            return tuple((up,) for up in self.up)
        return tuple(zip(self.gate, self.up, strict=True))
