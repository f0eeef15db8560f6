"""Log-probabilities of tokens, and the most probable tokens of each row, by PyTorch's own kernels.
The highest are selected without sorting the vocabulary."""

from __future__ import annotations

import torch

from penstock.kernels.ops.sampling import TOP_LOGPROBS
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import why_not

_MAGNITUDE = 0x7FFFFFFF  # all bits of a float32 except its sign


def top_logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `kernels.sampler_inputs`. The results have the same bits as the reference's. `logits: [S,
    V]` float32."""
    assert logits.dtype == torch.float32
    chosen = logits[rows.long()]
    usable = chosen.amax(dim=1).isfinite()  # false for NaN
    logprobs = chosen.log_softmax(dim=1)
    own = logprobs.gather(1, tokens.long()[:, None])[:, 0]
    ids = _best(logprobs, min(count, logprobs.shape[1]))
    nan = float("nan")
    return (
        own.where(usable, nan),
        ids.where(usable[:, None], -1).int(),
        logprobs.gather(1, ids).where(usable[:, None], nan),
    )


def _best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the `count` highest values of each row of [R, V] float32, the lower
    index first among equal values: [R, count] int64. Rows with NaN get arbitrary indices.

    A key has the bits of the value in its upper half, with the magnitude inverted if the value is
    negative, so that keys sort like values. The index, subtracted in the lower half, makes all keys
    of a row distinct: the selection has only one result.
    """
    if count == 0:
        return torch.empty(len(values), 0, dtype=torch.int64, device=values.device)
    bits = (values + 0.0).view(torch.int32)  # -0.0 is equal to 0.0
    keys = (bits ^ ((bits >> 31) & _MAGNITUDE)).long()
    keys <<= 32
    keys -= torch.arange(keys.shape[1], device=keys.device)
    return keys.topk(count, dim=1).indices


TOP_LOGPROBS.register(Impl("triton", top_logprobs, why_not))
