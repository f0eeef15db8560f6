"""The CPU KV cache of a GPU: KV blocks are copied to pinned memory before the device overwrites
them, and copied back before a step reads them.

A block to be saved is first copied to a buffer on the device, in the order of the steps, which
takes microseconds. A copy stream then copies it from the buffer to pinned memory. A block to be
restored is copied by the copy stream, and the step that reads the block waits for the copy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from penstock.runtime.gpu.copy_stream import CopyStream
from penstock.runtime.gpu.host_transfers import copy_to_device
from penstock.runtime.gpu.memory import ARRIVING_BLOCKS
from penstock.runtime.gpu.pinned_memory import PinnedMemory
from penstock.scheduler.types import CopyBlock, StepPlan


class CpuKvCache:
    """Saves KV blocks to pinned memory and restores them.

    `pools`: the parts of all blocks, [B, ...] int32 each (`KvPools.blocks`).
    `cpu_blocks`: number of blocks in pinned memory.
    `max_saves_per_step`: most blocks that a step saves.

    Blocks are copied bit by bit, whatever their dtype. Raises ModelError if the memory cannot be
    pinned.
    """

    def __init__(
        self,
        pools: Sequence[torch.Tensor],
        cpu_blocks: int,
        max_saves_per_step: int,
        copy_stream: CopyStream,
    ) -> None:
        self._pools = pools
        self._device = pools[0].device
        self._copy_stream = copy_stream
        sizes = [math.prod(pool.shape[1:]) for pool in pools]
        with copy_stream.on_device():
            self._pinned = PinnedMemory((cpu_blocks, sum(sizes)), torch.int32, self._device)
        self._parts = [
            slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)
        ]
        self._aside = self._room(max_saves_per_step)
        self._arriving = self._room(min(cpu_blocks, ARRIVING_BLOCKS))
        self._saved: Any = None
        self._restored: deque[tuple[int, Any]] = deque()
        self._last_restored = 0

    @property
    def last_restored(self) -> int:
        """The last step whose restores, and those of all earlier steps, are complete."""
        while self._restored and self._copy_stream.is_done(self._restored[0][1]):
            self._last_restored, _ = self._restored.popleft()
        return self._last_restored

    def prepare(self, plan: StepPlan) -> None:
        """Launch the copies of a step. Call this on the stream of the steps, before the step itself
        is launched."""
        if plan.saves:
            self._save(plan.saves)
        if plan.restores:
            self._copy_stream.wait_for_steps()
            event = self._copy_stream.run(lambda: self._restore(plan.restores))
            self._restored.append((plan.step, event))
        for step, event in self._restored:
            if step <= plan.awaits:
                self._copy_stream.make_steps_wait(event)

    def close(self) -> None:
        """Release the pinned memory. All steps and copies must have finished."""
        self._pinned.close()

    def _save(self, copies: tuple[CopyBlock, ...]) -> None:
        self._copy_stream.make_steps_wait(self._saved)  # the last saves still read `_aside`
        leaving = self._places([copy.block for copy in copies])
        for pool, aside in zip(self._pools, self._aside, strict=True):
            torch.index_select(pool, 0, leaving, out=aside[: len(copies)])
        self._copy_stream.wait_for_steps()
        self._saved = self._copy_stream.run(lambda: self._move_out(copies))

    def _move_out(self, copies: tuple[CopyBlock, ...]) -> None:
        for index, copy in enumerate(copies):
            for aside, host in zip(self._aside, self._host_parts(copy), strict=True):
                host.copy_(aside[index].view(-1), non_blocking=True)

    def _restore(self, copies: tuple[CopyBlock, ...]) -> None:
        most = len(self._arriving[0])
        for begin in range(0, len(copies), most):
            batch = copies[begin : begin + most]
            for index, copy in enumerate(batch):
                for arriving, host in zip(self._arriving, self._host_parts(copy), strict=True):
                    arriving[index].view(-1).copy_(host, non_blocking=True)
            places = self._places([copy.block for copy in batch])
            for pool, arriving in zip(self._pools, self._arriving, strict=True):
                pool.index_copy_(0, places, arriving[: len(batch)])

    def _host_parts(self, copy: CopyBlock) -> Iterator[torch.Tensor]:
        """Yield the parts of a block in pinned memory, one per pool."""
        block = self._pinned.data[copy.cpu_block]
        return (block[part] for part in self._parts)

    def _places(self, blocks: list[int]) -> torch.Tensor:
        """Copy block indices to the device, without waiting for the stream."""
        return copy_to_device(np.array(blocks, np.int64), self._device)

    def _room(self, blocks: int) -> list[torch.Tensor]:
        """Allocate device memory for some blocks, one tensor per pool."""
        return [
            torch.empty(blocks, *pool.shape[1:], dtype=torch.int32, device=self._device)
            for pool in self._pools
        ]
