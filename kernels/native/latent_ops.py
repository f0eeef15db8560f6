"""The ops of latent attention over a `CallBackend`, a part of `BackendOps`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock import _native
from penstock.kernels.latent_ops import LatentSizes, head_matrices
from penstock.kernels.native.backend import CallBackend
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.weights import Linear

Tensor = TypeVar("Tensor")


class LatentBackendOps(Generic[Tensor]):
    """See `kernels.latent_ops`."""

    _backend: CallBackend[Tensor]

    if TYPE_CHECKING:

        def _pack(self, weight: Linear, use: str = "products") -> Any: ...

    def pack_head_linear(self, weight: Linear) -> Any:
        return self._pack(Linear(head_matrices(weight)))

    def head_linear(self, x: Tensor, weight: Any) -> Tensor:
        out = self._backend.empty(x, weight.shape[0])
        threads = [self._backend.pool.threads]
        self._backend.call("head_linear", [x, out], threads, weight=weight)
        return out

    def latent_query(
        self,
        q: Tensor,
        rope: Tensor,
        inputs: StepInputs[Tensor],
        weight: Any,
        sizes: LatentSizes,
    ) -> Tensor:
        out = self._backend.empty(q, sizes.heads * (sizes.latent + sizes.rotated))
        integers = [self._backend.pool.threads, sizes.heads, sizes.latent, sizes.rotated]
        tensors = [q, rope, inputs.positions, out]
        self._backend.call("latent_query", tensors, integers, weight=weight)
        return out

    def latent_cache(
        self,
        kv: Tensor,
        norm_weight: Tensor,
        rope: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Any],
        eps: float,
    ) -> None:
        tensors = [kv, norm_weight, rope, inputs.positions, inputs.slots, cache.keys, cache.values]
        self._backend.call("latent_cache", tensors, reals=[eps])

    def latent_attention(
        self,
        q: Tensor,
        inputs: StepInputs[Tensor],
        cache: LayerCache[Any],
        sizes: LatentSizes,
        scale: float,
    ) -> Tensor:
        out = self._backend.empty(q, sizes.heads * sizes.latent)
        max_context = int(inputs.block_tables.shape[1]) * int(cache.values.shape[2])  # type: ignore[attr-defined]
        floats = _native.latent_partial_floats(sizes.heads, sizes.latent, max_context)
        tensors = [q, inputs.query_starts, inputs.context_lens, inputs.block_tables]
        tensors += [cache.keys, cache.values, out, self._backend.scratch(floats)]
        integers = [sizes.heads, sizes.latent, sizes.rotated]
        self._backend.call("latent_attention", tensors, integers, [scale])
        return out
