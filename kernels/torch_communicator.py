"""`Communicator` over torch.distributed: NCCL between GPUs, gloo between CPUs."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

import torch
import torch.distributed as dist

Backend = Literal["nccl", "gloo"]

Sums = Literal["fastest", "ordered"]
"""The order in which `all_reduce` adds. "fastest": the order of the backend, which may depend on
the size of the tensor. "ordered": the order of the ranks, in float32 or wider, rounded once."""

LOOPBACK: Final = "lo"
"""The network interface over which the ranks of one machine connect."""

_WIDENED: Final = (torch.bfloat16, torch.float16)

# Renamed in torch 2.13.
_gather: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class TorchCommunicator:
    """`Communicator[torch.Tensor]` over the default process group of this process.

    On a GPU, a call does not wait for its result: the operation is launched on the current stream
    and can be captured in a CUDA graph. All ranks must replay their graphs in the same order.
    """

    def __init__(
        self,
        rank: int,
        count: int,
        rendezvous: Path,
        backend: Backend,
        device: str = "cpu",
        sums: Sums = "fastest",
        timeout_s: float = 600.0,
    ) -> None:
        """Connect to the other ranks over the loopback interface.

        `rendezvous`: a new file, the same for all ranks.
        `sums`: see `Sums`.
        `timeout_s`: for the connection, and for every call that is not captured.

        Raises RuntimeError if a rank does not connect, or if this process already has a process
        group.
        """
        self.rank = rank
        self.count = count
        self._ordered = sums == "ordered"
        self._widened = _WIDENED if backend == "gloo" else ()
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.putenv(name, LOOPBACK)  # read by the libraries when they connect
        store = dist.FileStore(str(rendezvous), count)  # type: ignore[attr-defined]
        bound: dict[str, Any] = {}
        if torch.device(device).type == "cuda":
            bound["device_id"] = torch.device(device)  # connect now: not possible in a capture
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=timeout_s),
            **bound,
        )

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum `x` over all ranks in place; see `Communicator`. gloo adds 16-bit floats in float32
        and rounds once."""
        if self._ordered:
            return self._sum_in_order(x)
        if x.dtype in self._widened:
            wide = x.float()
            dist.all_reduce(wide)
            return x.copy_(wide)
        dist.all_reduce(x)
        return x

    def all_gather(self, y: torch.Tensor, columns: int) -> torch.Tensor:
        """Concatenate the columns of `y` of all ranks; see `Communicator`. The result is
        contiguous."""
        width = y.shape[1]
        parts = enumerate(self._parts(y))
        kept = [part[:, : max(columns - at * width, 0)] for at, part in parts]
        return torch.cat(kept, dim=1)

    def broadcast(self, tokens: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Copy the `tokens` of rank `source` to every rank, in place."""
        dist.broadcast(tokens, source)
        return tokens

    def _parts(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x: [S, W]` of every rank: [count, S, W]."""
        parts = x.new_empty(self.count, *x.shape)
        _gather(parts.flatten(0, 1), x.contiguous())
        return parts

    def _sum_in_order(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self._parts(x)
        total = first.to(torch.promote_types(x.dtype, torch.float32))
        for part in others:
            total = total + part
        return x.copy_(total)

    def close(self) -> None:
        """Leave the process group. Does not raise if another rank has already left."""
        if dist.is_initialized():
            dist.destroy_process_group()
