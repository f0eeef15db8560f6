"""Media on a device: the towers, the encoded items, which stay on the device, and the media of a
step.

Steps with media are launched kernel by kernel. A decode step after a prompt with media is captured
like any other: the device adds the shift of a row's positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.kernels.step_inputs import MediaRows, StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.loader.model_loader import LoadedModel
from penstock.models.towers.tower import EncodedMedia
from penstock.runtime.gpu.cuda_graphs import CudaCapturer
from penstock.runtime.gpu.host_transfers import HostTransfers
from penstock.runtime.gpu.tower_graphs import TowerGraphs
from penstock.runtime.media import TowerMedia, tower_media
from penstock.runtime.media_rows import MediaTable
from penstock.runtime.packed_positions import packed_positions
from penstock.scheduler.types import Chunk, StepPlan


@contextmanager
def launching(device: torch.device, stream: Any) -> Iterator[None]:
    """Select a device and its stream for the calling thread, without gradients. `stream`: None on a
    CPU (tests)."""
    with torch.inference_mode():
        if stream is None:
            yield
        else:
            with torch.cuda.device(device), torch.cuda.stream(stream):
                yield


class DeviceMedia:
    """The media of a model on a device.

    `towers`: the towers; None on a rank other than 0, which gets encoded items from rank 0.
    `encoded`: the encoded items, by digest.
    `table`: the media of the rows. Its buffers are on the device.
    """

    def __init__(
        self,
        model: LoadedModel,
        towers: TowerMedia[torch.Tensor] | None,
        ops: TorchOps,
        max_num_seqs: int,
        step_tokens: int,
    ) -> None:
        self.towers = towers
        self.encoded: dict[bytes, EncodedMedia[Any]] = {} if towers is None else towers.encoded
        self._width = model.spec.hidden_size
        self._ops = ops
        self.table = MediaTable(
            self.encoded,
            max_num_seqs,
            step_tokens,
            self._width,
            has_axes=bool(model.spec.rope.axes),
            zeros=self._zeros,
        )

    def empty_item(self, rows: int, deep: int) -> EncodedMedia[torch.Tensor]:
        """Return an item of `rows` rows, with `deep` tensors of DeepStack rows, to copy an encoded
        item into."""
        first, *others = (self._zeros((rows, self._width)) for _ in range(1 + deep))
        return EncodedMedia(first, tuple(others))

    def is_plain(self, plan: StepPlan) -> bool:
        """Return whether the step needs no media and no positions but those of the device."""
        rows = np.array([chunk.row for chunk in plan.chunks], np.intp)
        starts = np.array([chunk.start for chunk in plan.chunks], np.int32)
        return self.table.are_plain(rows, starts)

    def add_to(
        self,
        inputs: StepInputs[torch.Tensor],
        chunks: tuple[Chunk, ...],
        transfers: HostTransfers,
    ) -> StepInputs[torch.Tensor]:
        """Return the prepared inputs of a step of `chunks` with its media and positions."""
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        lengths = np.array([chunk.length + len(chunk.draft_tokens) for chunk in chunks], np.int32)
        query_starts, places = packed_positions(starts, lengths)
        rows = np.repeat(np.array([chunk.row for chunk in chunks], np.intp), lengths)
        shifted = self.table.shifted(rows, places)
        positions, media = self.table.inputs(chunks, shifted, places, query_starts)
        inputs = replace(inputs, positions=transfers.to_device(np.ascontiguousarray(positions)))
        if media is None:
            return inputs

        def sent(array: Any) -> Any:
            return None if array is None else transfers.to_device(np.ascontiguousarray(array))

        on_device: MediaRows[Any] = MediaRows(
            index=sent(media.index),
            rows=media.rows,
            deep=media.deep,
            rope_positions=tuple(map(sent, media.rope_positions)),
            rope_rows=sent(media.rope_rows),
            visible=sent(media.visible),
        )
        return replace(inputs, media=on_device)

    def _zeros(self, shape: tuple[int, int]) -> torch.Tensor:
        return torch.zeros(shape, dtype=self._ops.dtype, device=self._ops.device)


def device_towers(
    model: LoadedModel, ops: TorchOps, stream: Any, *, graphs: bool = True
) -> TowerMedia[torch.Tensor] | None:
    """Pack the towers of a model for a device. Return None for a model without towers. `stream`:
    see `launching`. `graphs`: False launches their layers kernel by kernel."""
    device = torch.device(ops.device)
    if graphs and device.type == "cuda":
        ops.layer_graphs = TowerGraphs(CudaCapturer(stream))
    return tower_media(
        model, ops, partial(kept_rows, ops), partial(launching, device, stream), all_finite
    )


def kept_rows(ops: TorchOps, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tower's result on the device, in the type of activations."""
    return tensor.to(ops.dtype).clone(memory_format=torch.contiguous_format)


def all_finite(rows: torch.Tensor) -> bool:
    """Return whether all numbers of a tensor are finite. Waits for the device."""
    return bool(torch.isfinite(rows).all())
