"""The ops of linear layers over a `CallBackend`, a part of `BackendOps`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.kernels.native.backend import CallBackend

Tensor = TypeVar("Tensor")


class LinearBackendOps(Generic[Tensor]):
    """See `kernels.ops_interface`."""

    _backend: CallBackend[Tensor]

    @property
    def tells_prompts_apart(self) -> bool:
        """Whether `linear_by_kind` computes prompt tokens in another way than other tokens."""
        return bool(self._backend.kernels.prompts)

    def linear(self, x: Tensor, weight: Any) -> Tensor:
        return self._linear(x, weight, None)

    def linear_by_kind(self, x: Tensor, weight: Any, is_prompt: Tensor) -> Tensor:
        return self._linear(x, weight, is_prompt if self.tells_prompts_apart else None)

    def _linear(self, x: Tensor, weight: Any, is_prompt: Tensor | None) -> Tensor:
        backend = self._backend
        out = backend.empty(x, weight.shape[0])
        threads = [backend.pool.threads]
        if weight.has_affine:
            quantized = backend.empty(x, weight.quantized_row_bytes, "uint8")
            only = None if is_prompt is None else (is_prompt, 0)
            backend.call("quantize_rows", [x, quantized], weight=weight, only=only)
            backend.call("linear_affine", [quantized, out], threads, weight=weight, only=only)
        if weight.has_affine and is_prompt is not None:
            rounded = backend.empty(x, weight.bf16_row_bytes, "uint8")
            only = (is_prompt, 1)
            backend.call("round_rows", [x, rounded], weight=weight, only=only)
            backend.call("linear_prompt", [rounded, out], threads, weight=weight, only=only)
        if weight.has_dense:
            rounded = backend.empty(x, weight.rounded_row_bytes, "uint8")
            backend.call("linear_dense", [x, out, rounded], threads, weight=weight)
        return out
