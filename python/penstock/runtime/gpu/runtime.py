"""The runtime of a GPU: it launches a step and looks at what was sampled later.

A step in which rows only draw freely never waits for the host: its inputs come from the rows on
the device, its tokens stay there, and the host gets a copy. A step of decodes is one replay of a
captured graph. What needs the host between logits and draw (masks, DRY, drafts, scores of prompts)
gets it: the forward pass is launched the same way, and `Sampler` does the rest
as on a CPU.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.adapter_groups import GroupWords
from penstock.runtime.gpu.adapters import DeviceAdapters
from penstock.runtime.gpu.copy_stream import CopyStream
from penstock.runtime.gpu.cpu_kv_cache import CpuKvCache
from penstock.runtime.gpu.cuda_graphs import (
    Capturer,
    CudaCapturer,
    DecodeGraphs,
    EagerCapturer,
    StepForm,
)
from penstock.runtime.gpu.host_transfers import Fetched, HostTransfers
from penstock.runtime.gpu.logit_adjustments import LogitAdjustments
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.row_table import DeviceRows
from penstock.runtime.gpu.sampler import MakeSampler, SingleDeviceSampler
from penstock.runtime.gpu.step_packing import Packed, StepPacker, is_decode
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.row_table import RowTable
from penstock.scheduler import MAX_DRAFT_TOKENS
from penstock.scheduler.types import SampledToken, StepPlan, StepResult

Results = tuple[torch.Tensor, "torch.Tensor | None"]  # logits, and tokens where it samples


FREE = StepForm(samples=True)
"""Of steps whose rows draw freely and have no adapters."""


@dataclass(frozen=True, slots=True)
class _InFlightStep:
    """A step on its way: `logprob_rows`, indices of the sampled rows whose log-probabilities are
    wanted,
    and how many of the best."""

    plan: StepPlan
    rows: list[int]
    fetched: Fetched
    logprob_rows: list[int]


class GpuRuntime:
    """A `Runtime` that overlaps. Sizes: see `DeviceRows`; `scratch_block` belongs to nobody.
    `graphs` False: every step is launched kernel by kernel."""

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
    ) -> None:
        self._ops, self._model = ops, model
        self._info, self._report = info, report
        self._device = torch.device(ops.device)
        self._stream = stream
        capturer: Capturer = EagerCapturer()
        if graphs and self._device.type == "cuda":
            capturer = CudaCapturer(stream)
        self._graphs: DecodeGraphs[Results] = DecodeGraphs(
            capturer, max_num_seqs, self._compute_decodes, self._clear
        )
        most_rows = self._graphs.sizes[-1]
        max_blocks = -(-info.max_model_len // info.block_size)
        self._adapters: DeviceAdapters | None = None
        if model.adapters is not None:
            copy_stream = CopyStream(self._device, stream)
            self._adapters = DeviceAdapters(model.adapters, copy_stream, self._device)
        self._cpu_kv_cache: CpuKvCache | None = None
        if info.cpu_blocks:
            copy_stream = CopyStream(self._device, stream)
            self._cpu_kv_cache = CpuKvCache(
                model.pool, info.cpu_blocks, info.max_saves_per_step, copy_stream
            )
        self._rows = RowTable(max_num_seqs, info.max_model_len, info.block_size)
        self._packer = StepPacker(
            self._rows,
            max_num_seqs=max_num_seqs,
            max_chunks=most_rows,
            step_tokens=step_tokens,
            max_blocks=max_blocks,
            block_size=info.block_size,
            num_slots=0 if self._adapters is None else self._adapters.capacity,
        )
        self._link = HostTransfers(self._device, self._packer.most_words)
        self._device_rows = DeviceRows(
            ops,
            self._link,
            max_num_seqs=max_num_seqs,
            max_blocks=max_blocks,
            block_size=info.block_size,
            max_chunks=most_rows,
            step_tokens=max(step_tokens, most_rows),
            max_places=max(most_rows, max_num_seqs + MAX_DRAFT_TOKENS),
            scratch_block=info.cache_blocks,
            vocab_size=info.vocab_size,
        )
        self._adjusted = LogitAdjustments(self._rows, self._device_rows.adjustments, self._link)
        self._sampler = sampler(ops, self._rows)
        self._in_flight: deque[_InFlightStep | StepResult] = deque()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # what was loaded is there for every stream

    @property
    def info(self) -> RuntimeInfo:
        return self._info

    @property
    def report(self) -> str:
        return self._report

    @property
    def adapters(self) -> DeviceAdapters | None:
        return self._adapters

    @property
    def captured(self) -> list[tuple[int, StepForm]]:
        """Sizes and forms of the captured graphs, in their order."""
        return self._graphs.captured

    def warm(self, *rows: int, form: StepForm = FREE) -> None:
        """Capture now what steps of so many decodes will need."""
        with self._launching():
            for count in rows:
                self._graphs.make(self._graphs.size_for(count), form)

    def dummy_run(self, rows: int, form: StepForm = FREE) -> None:
        """Launch a step of `rows` decodes of nobody, captured before: what a step costs without
        its contexts."""
        size = self._graphs.size_for(rows)
        with self._launching():
            self._clear(size, form)
            self._graphs.replay(size, form)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """See `Runtime.submit`."""
        self._rows.apply(plan)
        sampled = [chunk.row for chunk in plan.chunks if chunk.samples]
        free = masks is None and not self._rows.need_host(sampled)
        free &= not any(chunk.draft_tokens or chunk.num_scores for chunk in plan.chunks)
        with self._launching():
            if self._adapters is not None:
                self._adapters.await_slots(admit.adapter_slot for admit in plan.admissions)
            if self._cpu_kv_cache is not None:
                self._cpu_kv_cache.prepare(plan)
            self._adjusted.take(plan)
            if free:
                self._adjusted.refresh(sampled)
            logits, tokens = self._launch(plan, samples=free and bool(sampled))
            if free:
                self._in_flight.append(self._fetch_outputs(plan, sampled, logits, tokens))
                return
            self._drain()
            self._packer.forget(plan)
            self._adjusted.forget(sampled)
            wanted = logits[: self._wanted(plan)]
            self._in_flight.append(self._sampler.finish(plan, wanted, masks))

    def collect(self) -> StepResult:
        """See `Runtime.collect`."""
        result = self._collect()
        if self._cpu_kv_cache is None:
            return result
        return msgspec.structs.replace(result, last_restored=self._cpu_kv_cache.last_restored)

    def _collect(self) -> StepResult:
        return self._result_of(self._in_flight.popleft())

    def _drain(self) -> None:
        """Wait for what the steps in flight drew: the host samples next, for rows that know it."""
        self._in_flight = deque(self._result_of(step) for step in self._in_flight)

    def _result_of(self, step: _InFlightStep | StepResult) -> StepResult:
        """What a step drew, once it is there."""
        if isinstance(step, StepResult):
            return step
        arrived = step.fetched.wait()
        if not step.rows:
            return StepResult(step.plan.step, ())
        token_ids, *best = arrived
        token_ids = token_ids[: len(step.rows)]
        self._rows.append(step.rows, token_ids)
        return StepResult(step.plan.step, self._sampled_tokens(step, token_ids, best))

    def execute(self, plan: StepPlan, masks: Masks | None = None) -> StepResult:
        """Both in one."""
        self.submit(plan, masks)
        return self.collect()

    def prepare(self) -> bool:
        """See `Runtime.prepare`: one more graph is captured, so that no step has to wait for it."""
        missing = self.missing_graph()
        if missing is None:
            return False
        size, form = missing
        self.warm(size, form=form)
        return True

    def missing_graph(self) -> tuple[int, StepForm] | None:
        """Size and form of the graph to be captured next; None where steps like those so far find
        theirs."""
        return self._graphs.missing()

    def close(self) -> None:
        """See `Runtime.close`."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._in_flight.clear()
        del self._graphs
        if self._cpu_kv_cache is not None:
            self._cpu_kv_cache.close()
        self._cpu_kv_cache = self._adapters = None
        self._model.close()

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """Whatever thread calls: this device, this stream, no gradients."""
        with torch.inference_mode():
            if self._stream is None:
                yield
            else:
                with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                    yield

    def _launch(self, plan: StepPlan, *, samples: bool) -> Results:
        """Launch a step: its logits, and its tokens where the device samples them."""
        size = self._graphs.size_for(len(plan.chunks)) if is_decode(plan) else 0
        form = StepForm(samples, self._packer.is_adapted(plan))
        if size:
            self._graphs.make(size, form)
        packed = self._packer.pack(plan, self._link.staging(), size)
        self._device_rows.update(packed)
        if size:
            return self._graphs.replay(size, form)
        return self._compute(packed, samples)

    def _compute_decodes(self, size: int, form: StepForm) -> Results:
        packed = Packed(0, size, size, size, size, groups=self._groups_of(size, form))
        return self._compute(packed, form.samples, one_token=True)

    def _compute(self, packed: Packed, samples: bool, *, one_token: bool = False) -> Results:
        """The step that was sent last."""
        slots = self._device_rows.prepare(packed)
        logits = self._model.logits(slots.inputs, one_token=one_token)
        if not samples:
            return logits, None
        rows: Any = SamplingRows(
            slots.temperature, slots.top_k, slots.top_p, slots.min_p, slots.seed, slots.position
        )
        self._device_rows.adjust(logits[: packed.sampled], slots)
        tokens = self._sampler.sample(logits, rows)
        self._device_rows.append(packed, slots, tokens)
        return logits, tokens

    def _clear(self, size: int, form: StepForm) -> None:
        """Before a capture: the step is nobody's."""
        groups = self._groups_of(size, form)
        self._device_rows.update(self._packer.pack_dummy(self._link.staging(), size, groups))

    def _groups_of(self, size: int, form: StepForm) -> GroupWords | None:
        return self._packer.groups_of(size) if form.adapted else None

    def _wanted(self, plan: StepPlan) -> int:
        """Places of a step whose logits are wanted."""
        return sum(
            chunk.num_scores + chunk.samples + len(chunk.draft_tokens) for chunk in plan.chunks
        )

    def _fetch_outputs(
        self, plan: StepPlan, sampled: list[int], logits: torch.Tensor, tokens: torch.Tensor | None
    ) -> _InFlightStep:
        """Ask for what the host will want to know of a launched step."""
        logprob_rows = [
            i for i, row in enumerate(sampled) if self._rows.top_logprobs[row] is not None
        ]
        results = [] if tokens is None else [tokens]
        if logprob_rows and tokens is not None:
            count = max(self._rows.top_logprobs[sampled[index]] or 0 for index in logprob_rows)
            rows = self._link.index(logprob_rows)
            chosen = tokens[rows.long()].clamp(min=0)
            results += self._ops.top_logprobs(logits, rows, chosen, count)
        return _InFlightStep(plan, sampled, self._link.fetch(results), logprob_rows)

    def _sampled_tokens(
        self, step: _InFlightStep, token_ids: Ints, best: list[Any]
    ) -> tuple[SampledToken, ...]:
        logprobs = {}
        if step.logprob_rows:
            own, ids, values = (part.tolist() for part in best)
            logprobs = dict(zip(step.logprob_rows, zip(own, ids, values, strict=True), strict=True))
        sampled = []
        for index, (row, token) in enumerate(zip(step.rows, token_ids.tolist(), strict=True)):
            if token < 0:
                sampled.append(SampledToken(row, token, failed=True))
            elif index not in logprobs:
                sampled.append(SampledToken(row, token))
            else:
                logprob, ids, values = logprobs[index]
                pairs = [p for p in zip(ids, values, strict=True) if p[1] > -math.inf]
                top = tuple(pairs[: self._rows.top_logprobs[row]])
                sampled.append(SampledToken(row, token, logprob, top))
        return tuple(sampled)
