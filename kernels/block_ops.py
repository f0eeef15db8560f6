"""`BlockOps`: ops of blocks that only some decoders have, a part of `Ops`."""

from __future__ import annotations

from typing import Protocol, TypeVar

Tensor = TypeVar("Tensor")


class BlockOps(Protocol[Tensor]):
    """The ops of value norms, per-layer inputs, soft caps, scaled queries, sparse gates and
    alternating updates (AltUp)."""

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x * y: [T, W] -> [T, W]."""

    def scaled_sum(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """Return (x + y) * scale: [T, W] -> [T, W]."""

    def scale_rows(self, x: Tensor, table: Tensor, index: Tensor) -> Tensor:
        """Return x[t] * table[index[t]] for each token t: [T, W], [positions] float32, [T] int32 ->
        [T, W]."""

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """Return cap * tanh(x / cap): [T, F] -> [T, F]."""

    def sparse_gelu_tanh_mul(self, gate_up: Tensor, deviations: float) -> Tensor:
        """Return gelu(max(gate - cutoff, 0)) * up for gate_up = [gate | up], with the tanh
        approximation of gelu: [T, 2 F] -> [T, F]. The cutoff is the mean of a token's gates plus
        `deviations` times their standard deviation."""

    def norm_values(self, x: Tensor, heads: tuple[int, int, int], eps: float) -> Tensor:
        """Return [q | k | norm(v)], the input of `rope_cache`: [T, C] -> [T, (H + 2 K) * D].

        `x`: [q | k | v], or [q | k] in a layer whose values are its keys. The norm divides each
        head by the root of its mean square plus `eps`.
        `heads`: (H, K, D).
        """

    def norm_rope(
        self, x: Tensor, weight: Tensor, rope: Tensor, positions: Tensor, eps: float
    ) -> Tensor:
        """Normalize and rotate the heads of queries as `rope_cache` does, without keys and values:
        [T, H * D] -> [T, H * D].

        `weight`: [D] float32, the norm's weight.
        `rope`: [positions, rotated] float32; see `rope_cache`.
        `positions`: [T] int32, the row of `rope` for each token.
        """

    def altup_predict(
        self, s0: Tensor, s1: Tensor, s2: Tensor, s3: Tensor, coefficients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return four predictions [T, W]: p_j = s_j + sum over i of coefficients[:, 4 j + i] * s_i.
        `coefficients`: [T, 16]."""

    def altup_correct(
        self,
        p0: Tensor,
        p1: Tensor,
        p2: Tensor,
        p3: Tensor,
        activated: Tensor,
        coefficients: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return four corrected predictions, c_j = p_j + (coefficients[:, j] + 1) * (activated -
        p0), and c_0 * weight: [T, W] each. `coefficients`: [T, 4]. `weight`: [W] float32."""

    def match_magnitude(self, x: Tensor, target: Tensor, least: float) -> Tensor:
        """Return x times the root mean square of `target` divided by that of x, for each row: [T,
        W] -> [T, W]. The mean square of x counts as at least `least`."""
