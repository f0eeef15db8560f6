"""`RecurrentOps`: the ops of recurrent layers, a part of `Ops`.

The dimensions and the rules of states are in `kernels.recurrent_state`. All ops read the states of
`inputs.states` and write the states after the chunks; a row's result has the same bits for every
division of its sequence into chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.kernels.recurrent_state import ConvState, MatrixState

if TYPE_CHECKING:
    from penstock.kernels.step_inputs import StepInputs

Tensor = TypeVar("Tensor")


class RecurrentOps(Protocol[Tensor]):
    """The ops of gated delta nets, Mamba2 and short convolutions, with their norms and gates."""

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inputs: StepInputs[Tensor],
        state: ConvState[Tensor],
    ) -> Tensor:
        """Return silu(y), with y the depthwise causal convolution over the tokens of each sequence:
        y[t, c] = bias[c] + sum over l < L of weight[c, l] * x[t - L + 1 + l, c]. [T, C] -> [T, C].

        `weight`: [C, L] float32. `bias`: [C] float32 or None.
        """

    def gated_conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inputs: StepInputs[Tensor],
        state: ConvState[Tensor],
    ) -> Tensor:
        """Return c * conv(b * v) for x = [b | c | v], with the convolution of `causal_conv` without
        silu (LFM2): [T, 3 C] -> [T, C]. The state has the values of b * v."""

    def gated_delta_rule(
        self,
        qkv: Tensor,
        gates: Tensor,
        decay: Tensor,
        inputs: StepInputs[Tensor],
        state: MatrixState[Tensor],
        heads: tuple[int, int, int, int],
        beta_scale: float,
    ) -> Tensor:
        """Compute a gated delta net (arXiv 2412.06464): [T, 2 G N + H D] -> [T, H D].

        Per head, with keys and queries normalized to length 1 (x / sqrt(sum(x^2) + 1e-6)) and
        queries divided by sqrt(N): S = exp(g) S; u = beta (v - S^T k); S = S + k u^T; out = S^T q.

        `qkv`: queries [G, N], keys [G, N], values [H, D] of each token, after the convolution.
        `gates`: [T, 2 H], b and a: beta = beta_scale * sigmoid(b), g = -decay[0] * softplus(a +
            decay[1]).
        `decay`: [2, H] float32, exp(A_log) and dt_bias.
        `heads`: (G, H, N, D); value head h has the keys and queries of group h // (H / G).
        """

    def state_space_scan(
        self,
        xbc: Tensor,
        dt: Tensor,
        constants: Tensor,
        inputs: StepInputs[Tensor],
        state: MatrixState[Tensor],
        heads: tuple[int, int, int, int],
        dt_limits: tuple[float, float],
    ) -> Tensor:
        """Compute the scan of Mamba2 (arXiv 2405.21060): [T, H D + 2 G N] -> [T, H D].

        Per head, with d = clamp(softplus(dt + constants[1]), dt_limits): S = exp(-constants[0] d) S
        + b (d x)^T; out = S^T c + constants[2] x.

        `xbc`: x [H, D], b [G, N], c [G, N] of each token, after the convolution.
        `dt`: [T, H]. `constants`: [3, H] float32, exp(A_log), dt_bias and D.
        `heads`: (G, H, N, D); head h has b and c of group h // (H / G).
        """

    def norm_then_gate(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, groups: int
    ) -> Tensor:
        """Return rms_norm(x) * weight * silu(gate): [T, W] -> [T, W]. Each of `groups` equal parts
        of a row is normalized on its own. `weight`: [W]."""

    def gate_then_norm(
        self, x: Tensor, gate: Tensor, weight: Tensor, eps: float, groups: int
    ) -> Tensor:
        """Return rms_norm(x * silu(gate)) * weight: [T, W] -> [T, W], in groups as in
        `norm_then_gate`."""

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x * sigmoid(gate): [T, W] -> [T, W]. A gate of one column, [T, 1], applies to
        the whole row."""

    def silu_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x * silu(gate): [T, W] -> [T, W]."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + y: [T, W] -> [T, W]."""

    def relu_squared(self, x: Tensor) -> Tensor:
        """Return max(x, 0)^2: [T, F] -> [T, F]."""
