"""Sampling with the native ops, which all native backends have in common."""

from __future__ import annotations

from penstock.kernels.native import NativeOps
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.runtime.backend import Floats, Ints


class NativeSampling:
    """The `SamplingOps` of a backend. Its constructor sets `_ops`."""

    _ops: NativeOps

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        """See `SamplingOps.sample`."""
        return self._ops.sample(logits, rows)

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        """See `SamplingOps.top_logprobs`."""
        return self._ops.top_logprobs(logits, rows, tokens, count)
