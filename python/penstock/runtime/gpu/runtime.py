"""The GPU runtime: launches a step and reads the sampled tokens later.

A step in which the device samples all rows never waits for the CPU: its inputs come from the
persistent batch on the device, its tokens stay there, and the CPU gets a copy. A pure decode step
is one replay of a CUDA graph; a step with prefill is launched kernel by kernel. The sampler of a
step with token masks is launched later than its forward pass, when the CPU has computed the masks.
If the CPU takes part in sampling (DRY, draft tokens, prompt log-probabilities), the forward pass is
launched in the same way, and `Sampler` does the rest as on a CPU.

A drafter proposes tokens after the tokens of a step were read, so with a drafter steps do not
overlap.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import torch

from penstock.kernels.persistent_batch import StepBuffers
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.drafter import with_drafts
from penstock.runtime.gpu.adapters import DeviceAdapters
from penstock.runtime.gpu.copy_stream import CopyStream
from penstock.runtime.gpu.cpu_kv_cache import CpuKvCache
from penstock.runtime.gpu.cuda_graphs import DecodeGraphs, StepForm, capturer_of
from penstock.runtime.gpu.host_transfers import HostTransfers
from penstock.runtime.gpu.logit_adjustments import LogitAdjustments
from penstock.runtime.gpu.media import DeviceMedia, launching
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.placed_drafter import PlacedDrafter
from penstock.runtime.gpu.row_table import DeviceRows
from penstock.runtime.gpu.sampler import MakeSampler, SingleDeviceSampler
from penstock.runtime.gpu.state_words import StatePacker
from penstock.runtime.gpu.step_outputs import OutputReader, StepOutputs
from penstock.runtime.gpu.step_packing import Packed, StepPacker, is_decode
from penstock.runtime.media import RuntimeMedia
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.scheduler import MAX_DRAFT_TOKENS
from penstock.scheduler.types import Chunk, StepPlan, StepResult


class Results(NamedTuple):
    """The results of a step: its logits, its tokens if the device samples, and the hidden states of
    all tokens if the drafter reads them."""

    logits: torch.Tensor
    tokens: torch.Tensor | None
    hidden: torch.Tensor | None


DEVICE_SAMPLING = StepForm(samples=True)
"""Decode steps that the device samples, without adapters."""


@dataclass(frozen=True, slots=True)
class MaskedStep:
    """A step whose forward pass is launched, and whose sampler waits for `masks`.

    `rows`: the sampled rows.
    `packed`: the step as sent to the device, without padding.
    `logits`: [S, V], S >= number of sampled rows.
    """

    plan: StepPlan
    rows: list[int]
    packed: Packed
    logits: torch.Tensor
    masks: Masks


class GpuRuntime:
    """A `Runtime` on a GPU that overlaps steps.

    `max_num_seqs`: number of rows.
    `step_tokens`: most tokens of a step.
    `stream`: the stream on which steps are launched, None on a CPU (tests).
    `graphs`: False launches every step kernel by kernel.
    `sampler`: creates the sampler.
    `device_media`: the towers and the media of the rows; None for a model that reads only text.
    `drafter`: None: the runtime proposes no draft tokens.

    The model's KV cache must have one block more than `info.cache_blocks`, and its recurrent states
    one row more than `max_num_seqs`, for padding.
    """

    def __init__(
        self,
        ops: TorchOps,
        model: DeviceModel,
        info: RuntimeInfo,
        report: str,
        *,
        max_num_seqs: int,
        step_tokens: int,
        stream: Any = None,
        graphs: bool = True,
        sampler: MakeSampler = SingleDeviceSampler,
        media: DeviceMedia | None = None,
        drafter: PlacedDrafter | None = None,
    ) -> None:
        assert drafter is None or not info.overlaps
        self.device_media = media
        self._ops, self._model = ops, model
        self._info, self._report = info, report
        self._device = torch.device(ops.device)
        self._stream = stream
        self._graphs: DecodeGraphs[StepForm, Results] = DecodeGraphs(
            capturer_of(stream, graphs=graphs), max_num_seqs, self._compute_decodes, self._clear
        )
        max_rows = self._graphs.sizes[-1]
        max_blocks = -(-info.max_model_len // info.block_size)
        self._adapters: DeviceAdapters | None = None
        if model.adapters is not None:
            copy_stream = CopyStream(self._device, stream)
            self._adapters = DeviceAdapters(model.adapters, copy_stream, self._device)
        self._cpu_kv_cache: CpuKvCache | None = None
        if info.cpu_blocks:
            copy_stream = CopyStream(self._device, stream)
            parts = [*model.pools.blocks, *([] if drafter is None else drafter.pools.blocks)]
            self._cpu_kv_cache = CpuKvCache(
                parts, info.cpu_blocks, info.max_saves_per_step, copy_stream
            )
        table = None if media is None else media.table
        self._rows = RowTable(max_num_seqs, info.max_model_len, info.block_size, table)
        self._packer = StepPacker(
            self._rows,
            max_num_seqs=max_num_seqs,
            max_chunks=max_rows,
            step_tokens=step_tokens,
            max_blocks=max_blocks,
            block_size=info.block_size,
            num_slots=0 if self._adapters is None else self._adapters.capacity,
            states=None if info.state_snapshots is None else StatePacker(max_num_seqs),
        )
        self._transfers = HostTransfers(self._device, self._packer.max_words)
        self._device_rows = DeviceRows(
            ops,
            self._transfers,
            max_num_seqs=max_num_seqs,
            max_blocks=max_blocks,
            block_size=info.block_size,
            max_chunks=max_rows,
            step_tokens=max(step_tokens, max_rows),
            max_places=max(max_rows, max_num_seqs + MAX_DRAFT_TOKENS),
            scratch_block=info.cache_blocks,
            vocab_size=info.vocab_size,
        )
        self._adjustments = LogitAdjustments(
            self._rows, self._device_rows.adjustments, self._transfers
        )
        self._sampler = sampler(ops, self._rows)
        self._outputs = OutputReader(ops, self._rows, self._transfers)
        self._in_flight: deque[StepOutputs | StepResult] = deque()
        self._masked: MaskedStep | None = None
        self.placed_drafter = drafter
        self._drafter = None if drafter is None else drafter.create(self._rows)
        self._drafting: tuple[StepPlan, torch.Tensor | None] | None = None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # weights and cache are complete for all streams

    @property
    def info(self) -> RuntimeInfo:
        return self._info

    @property
    def report(self) -> str:
        return self._report

    @property
    def media(self) -> RuntimeMedia | None:
        return None if self.device_media is None else self.device_media.towers

    @property
    def live_weights(self) -> None:
        return None

    @property
    def adapters(self) -> DeviceAdapters | None:
        return self._adapters

    @property
    def captured(self) -> list[tuple[int, StepForm]]:
        """Size and form of each captured graph, in the order of the captures."""
        return self._graphs.captured

    def warm(self, *rows: int, form: StepForm = DEVICE_SAMPLING) -> None:
        """Capture the graphs for decode steps with these numbers of rows."""
        with self.launching():
            for count in rows:
                self._graphs.make(self._graphs.size_for(count), form)
            if self.placed_drafter is not None:
                self.placed_drafter.steps.warm()

    def dummy_run(self, rows: int, form: StepForm = DEVICE_SAMPLING) -> None:
        """Launch a captured decode step of `rows` padding rows, to measure a step without
        contexts."""
        size = self._graphs.size_for(rows)
        with self.launching():
            self._clear(size, form)
            self._graphs.replay(size, form)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Launch a step; see `Runtime.submit`."""
        self._sample_masked()
        self._rows.apply(plan)
        sampled = [chunk.row for chunk in plan.chunks if chunk.samples]
        on_device = not self._rows.need_cpu(sampled)
        on_device &= not any(chunk.draft_tokens or chunk.num_scores for chunk in plan.chunks)
        with self.launching():
            if self._adapters is not None:
                self._adapters.await_slots(admit.adapter_slot for admit in plan.admissions)
            if self._cpu_kv_cache is not None:
                self._cpu_kv_cache.prepare(plan)
            self._adjustments.note_plan(plan)
            if on_device:
                self._adjustments.refresh(sampled)
            samples = on_device and masks is None and bool(sampled)
            packed, (logits, tokens, hidden) = self._launch(plan, samples=samples)
            if self._drafter is not None:
                self._drafting = plan, hidden
            if on_device and masks is not None:
                self._masked = MaskedStep(plan, sampled, packed, logits, masks)
                return
            if on_device:
                self._in_flight.append(self._outputs.fetch(plan, sampled, logits, tokens))
                return
            self._drain()
            self._packer.mark_cpu_sampled(plan)
            self._adjustments.mark_stale(sampled)
            own = logits[: _count_places(plan)]
            self._in_flight.append(self._sampler.finish(plan, own, masks))

    def collect(self) -> StepResult:
        """Wait for the oldest step in flight and return its result; see `Runtime.collect`."""
        result = self._collect()
        if self._drafter is not None and self._drafting is not None:
            (plan, hidden), self._drafting = self._drafting, None
            with self.launching():
                result = with_drafts(self._drafter, plan, result, hidden)
        if self._cpu_kv_cache is None:
            return result
        return msgspec.structs.replace(result, last_restored=self._cpu_kv_cache.last_restored)

    def _collect(self) -> StepResult:
        if not self._in_flight:
            self._sample_masked()
        return self._result_of(self._in_flight.popleft())

    def _sample_masked(self) -> None:
        """Launch the sampler of the step that waits for its masks, if there is one."""
        if self._masked is None:
            return
        step, self._masked = self._masked, None
        with self.launching():
            slots = self._device_rows.slots_of(step.packed)
            logits = step.logits[: len(step.rows)]
            tokens = self._sample(step.packed, slots, logits, step.masks)
            self._in_flight.append(self._outputs.fetch(step.plan, step.rows, logits, tokens))

    def _drain(self) -> None:
        """Wait for all steps in flight and read their tokens, because the CPU samples next and
        needs them."""
        self._in_flight = deque(self._result_of(step) for step in self._in_flight)

    def _result_of(self, step: StepOutputs | StepResult) -> StepResult:
        return step if isinstance(step, StepResult) else self._outputs.read(step)

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Submit a step and collect its result in one call."""
        self.submit(plan, masks)
        return self.collect()

    def prepare(self) -> bool:
        """Capture one more graph, so that no later step has to wait for the capture. See
        `Runtime.prepare`."""
        missing = self.missing_graph()
        if missing is None:
            with self.launching():
                return self.placed_drafter is not None and self.placed_drafter.steps.prepare()
        size, form = missing
        self.warm(size, form=form)
        return True

    def missing_graph(self) -> tuple[int, StepForm] | None:
        """Return size and form of the graph to capture next. Return None if there is a graph for
        every size of the forms used so far."""
        return self._graphs.missing()

    def close(self) -> None:
        """Wait for the device and release all memory; see `Runtime.close`."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._in_flight.clear()
        self._masked = self._drafting = None
        if self._drafter is not None:
            self._drafter.close()
        del self._graphs
        if self._cpu_kv_cache is not None:
            self._cpu_kv_cache.close()
        self._cpu_kv_cache = self._adapters = self.device_media = None
        self._drafter = self.placed_drafter = None
        self._model.close()

    def launching(self) -> AbstractContextManager[None]:
        """Select the device and the stream of steps for the calling thread."""
        return launching(self._device, self._stream)

    def _launch(self, plan: StepPlan, *, samples: bool) -> tuple[Packed, Results]:
        """Launch a step: a decode step as a graph, a step with prefill kernel by kernel. Return the
        step without padding, its logits, and its tokens if `samples`."""
        media = self.device_media
        if media is not None and media.is_plain(plan):
            media = None
        decode = is_decode(plan) and media is None
        size = self._graphs.size_for(len(plan.chunks)) if decode else 0
        form = StepForm(samples, self._packer.is_adapted(plan))
        if size:
            self._graphs.make(size, form)
        packed = self._packer.pack(plan, self._transfers.staging(), size)
        self._device_rows.update(packed)
        if not size:
            return packed, self._compute(packed, samples, media=media, chunks=plan.chunks)
        count = len(plan.chunks)
        whole = replace(packed, chunks=count, tokens=count, places=count, sampled=count)
        return whole, self._graphs.replay(size, form)

    def _compute_decodes(self, size: int, form: StepForm) -> Results:
        packed = self._packer.decode_layout(size, form.adapted)
        return self._compute(packed, form.samples, one_token=True)

    def _compute(
        self,
        packed: Packed,
        samples: bool,
        *,
        one_token: bool = False,
        media: DeviceMedia | None = None,
        chunks: tuple[Chunk, ...] = (),
    ) -> Results:
        """Launch the kernels of the step that was sent last. Return its logits, and its tokens if
        the device samples. `media`: not None if the step's `chunks` have media."""
        slots: StepBuffers[Any] = self._device_rows.prepare(packed)
        inputs = slots.inputs
        if media is not None:
            inputs = media.add_to(inputs, chunks, self._transfers)
        logits, hidden = self._model.forward(inputs, one_token=one_token)
        tokens = self._sample(packed, slots, logits) if samples else None
        return Results(logits, tokens, hidden)

    def _sample(
        self,
        packed: Packed,
        slots: StepBuffers[Any],
        logits: torch.Tensor,
        masks: Masks | None = None,
    ) -> torch.Tensor:
        """Launch the sampler of the step that was sent last, and append its tokens to the rows on
        the device. Return the tokens."""
        rows = SamplingRows(
            slots.temperature, slots.top_k, slots.top_p, slots.min_p, slots.seed, slots.position
        )
        self._device_rows.adjust(logits[: packed.sampled], slots)
        tokens = self._sampler.sample(logits, rows, masks)
        self._device_rows.append(packed, slots, tokens)
        return tokens

    def _clear(self, size: int, form: StepForm) -> None:
        """Fill the inputs of a step with padding, before a capture."""
        staged = self._transfers.staging()
        self._device_rows.update(self._packer.pack_dummy(staged, size, form.adapted))


def _count_places(plan: StepPlan) -> int:
    """Return the number of tokens of a step whose logits are needed."""
    return sum(chunk.num_scores + chunk.samples + len(chunk.draft_tokens) for chunk in plan.chunks)
