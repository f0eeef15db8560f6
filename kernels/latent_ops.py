"""`LatentOps`: the ops of multi-head latent attention (MLA, arXiv 2405.04434), a part of `Ops`.

A token's cache entry is its latent, from which keys and values of all heads derive, and one rotated
key part that all heads share. Attention runs in the absorbed form: the matrices that make keys and
values of a head from the latent multiply the query and the result instead. So all heads read the
same keys (latent, rotated part) and values (latent), and prefill and decode have the same bits.

    q = latent_query(linear(x, q), rope, inputs, key_weight, sizes)
    latent_cache(linear(x, kv), norm_weight, rope, inputs, cache, eps)
    y = head_linear(latent_attention(q, inputs, cache, sizes, scale), value_weight)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.kernels.weights import Dense, Linear

if TYPE_CHECKING:
    from penstock.kernels.step_inputs import LayerCache, StepInputs

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The sizes of a latent attention.

    - `heads`: query heads.
    - `latent`: elements of a latent (kv_lora_rank), a multiple of 8.
    - `rotated`: elements of the rotated part of queries and keys (qk_rope_head_dim), a multiple of
      8.
    """

    heads: int
    latent: int
    rotated: int


def head_matrices(weight: Linear) -> tuple[Dense, ...]:
    """Return the matrices of the heads. Raises ValueError unless all parts are dense and of one
    shape, without bias."""
    dense = tuple(part for part in weight.parts if isinstance(part, Dense))
    if len(dense) < len(weight.parts) or len({part.shape for part in dense}) != 1:
        raise ValueError("head_linear: the parts must be dense matrices of one shape")
    if weight.bias is not None:
        raise ValueError("head_linear: heads have no bias")
    return dense


class LatentOps(Protocol[Tensor]):
    """The ops of latent attention. Its KV cache is a `LayerCache` with keys [B, 1, latent +
    rotated, P] and values [B, 1, P, latent]: a key is the latent, then the rotated part; a value is
    the latent. On a GPU, values may be a view of keys (`gpu_kv_cache.latent_caches_of`)."""

    def pack_head_linear(self, weight: Linear) -> Any:
        """Return the matrices of all heads prepared for `head_linear` and `latent_query`: one
        `Dense` part [N, C] per head, without bias. Called once, at load. Raises ValueError for
        other weights."""

    def head_linear(self, x: Tensor, weight: Any) -> Tensor:
        """Return, for each head, the product of its columns of x with its matrix: [T, heads * C] ->
        [T, heads * N]. Products are computed as in `linear`."""

    def latent_query(
        self,
        q: Tensor,
        rope: Tensor,
        inputs: StepInputs[Tensor],
        weight: Any,
        sizes: LatentSizes,
    ) -> Tensor:
        """Return the queries for `latent_attention`: [T, heads * (C + rotated)] -> [T, heads *
        (latent + rotated)].

        A head of q has C plain elements, then `rotated` elements to rotate. Its result is the
        product of the plain elements with the head's matrix, then the rotated elements.

        `rope`: [positions, rotated] float32, as in `rope_cache`: element i is rotated together with
            element i + rotated / 2. Weights for interleaved pairs must be reordered at load.
        `weight`: from `pack_head_linear`, a matrix [latent, C] per head: the transposed key rows of
            kv_b_proj.
        """

    def latent_cache(
        self,
        kv: Tensor,
        norm_weight: Tensor,
        rope: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        eps: float,
    ) -> None:
        """Normalise the latent of each token, rotate the rest, and store both in the cache at
        `inputs.slots`.

        `kv`: [T, latent + rotated], the latent, then the part to rotate.
        `norm_weight`: [latent], of the RMSNorm of the latent. `eps`: added to its mean square.
        `rope`: as in `latent_query`.
        """

    def latent_attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Tensor],
        sizes: LatentSizes,
        scale: float,
    ) -> Tensor:
        """Compute causal attention of each token over the cache of its own sequence: [T, heads *
        (latent + rotated)] -> [T, heads * latent]. `scale`: factor of the scores. `inputs.media` is
        not read."""
