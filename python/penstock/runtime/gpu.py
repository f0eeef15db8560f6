"""The runtime of a GPU: it launches a step and looks at what was drawn later.

A step in which rows only draw freely never waits for the host: its inputs come from the rows on
the device, its tokens stay there, and the host gets a copy. A step of decodes is one replay of a
captured graph. What needs the host between logits and draw (masks, DRY, drafts, scores of prompts)
gets it: the forward pass is launched the same way, and `Drawing` does the rest
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

from penstock.kernels.sampling import SamplingRows
from penstock.kernels.torch_ops import TorchOps
from penstock.runtime.backend import Ints
from penstock.runtime.gpu_adapters import DeviceAdapters
from penstock.runtime.gpu_adjust import AdjustedRows
from penstock.runtime.gpu_draws import MakeDraws, OwnDraws
from penstock.runtime.gpu_graphs import CallAgain, Capturer, CudaCapturer, DecodeGraphs, StepForm
from penstock.runtime.gpu_groups import GroupWords
from penstock.runtime.gpu_host_cache import HostCache
from penstock.runtime.gpu_lane import Lane
from penstock.runtime.gpu_link import Fetched, Link
from penstock.runtime.gpu_model import DeviceModel
from penstock.runtime.gpu_rows import DeviceRows
from penstock.runtime.gpu_upload import Packed, StepPacker, is_decode
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.runtime.rows import RowTable
from penstock.scheduler import MAX_DRAFT
from penstock.scheduler.types import Drawn, StepPlan, StepResult

Results = tuple[torch.Tensor, "torch.Tensor | None"]  # logits, and tokens where it draws


FREE = StepForm(draws=True)
"""Of steps whose rows draw freely and have no adapters."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step on its way: `asked`, indices of the drawn rows whose log-probabilities are wanted,
    and how many of the best."""

    plan: StepPlan
    rows: list[int]
    fetched: Fetched
    asked: list[int]


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
        max_seqs: int,
        step_tokens: int,
        stream: Any = None,
        graphs: bool = True,
        draws: MakeDraws = OwnDraws,
    ) -> None:
        self._ops, self._model = ops, model
        self._info, self._report = info, report
        self._device = torch.device(ops.device)
        self._stream = stream
        capturer: Capturer = CallAgain()
        if graphs and self._device.type == "cuda":
            capturer = CudaCapturer(stream)
        self._graphs: DecodeGraphs[Results] = DecodeGraphs(
            capturer, max_seqs, self._compute_decodes, self._clear
        )
        most_rows = self._graphs.sizes[-1]
        max_blocks = -(-info.context_tokens // info.block_tokens)
        self._adapters: DeviceAdapters | None = None
        if model.adapters is not None:
            lane = Lane(self._device, stream)
            self._adapters = DeviceAdapters(model.adapters, lane, self._device)
        self._host_cache: HostCache | None = None
        if info.host_blocks:
            lane = Lane(self._device, stream)
            self._host_cache = HostCache(model.pool, info.host_blocks, info.most_saves, lane)
        self._rows = RowTable(max_seqs, info.context_tokens, info.block_tokens)
        self._packer = StepPacker(
            self._rows,
            max_seqs=max_seqs,
            max_chunks=most_rows,
            step_tokens=step_tokens,
            max_blocks=max_blocks,
            block_tokens=info.block_tokens,
            num_slots=0 if self._adapters is None else self._adapters.capacity,
        )
        self._link = Link(self._device, self._packer.most_words)
        self._device_rows = DeviceRows(
            ops,
            self._link,
            max_seqs=max_seqs,
            max_blocks=max_blocks,
            block_tokens=info.block_tokens,
            max_chunks=most_rows,
            step_tokens=max(step_tokens, most_rows),
            max_places=max(most_rows, max_seqs + MAX_DRAFT),
            scratch_block=info.cache_blocks,
            vocab_size=info.vocab_size,
        )
        self._adjusted = AdjustedRows(self._rows, self._device_rows.adjustments, self._link)
        self._draws = draws(ops, self._rows)
        self._flights: deque[_Flight | StepResult] = deque()
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

    def replay_nobody(self, rows: int, form: StepForm = FREE) -> None:
        """Launch a step of `rows` decodes of nobody, captured before: what a step costs without
        its contexts."""
        size = self._graphs.size_for(rows)
        with self._launching():
            self._clear(size, form)
            self._graphs.replay(size, form)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """See `Runtime.submit`."""
        self._rows.apply(plan)
        drawn = [chunk.row for chunk in plan.chunks if chunk.samples]
        free = masks is None and not self._rows.need_host(drawn)
        free &= not any(chunk.draft or chunk.num_scores for chunk in plan.chunks)
        with self._launching():
            if self._adapters is not None:
                self._adapters.await_slots(admit.adapter_slot for admit in plan.admissions)
            if self._host_cache is not None:
                self._host_cache.prepare(plan)
            self._adjusted.take(plan)
            if free:
                self._adjusted.refresh(drawn)
            logits, tokens = self._launch(plan, draws=free and bool(drawn))
            if free:
                self._flights.append(self._fly(plan, drawn, logits, tokens))
                return
            self._settle()
            self._packer.forget(plan)
            self._adjusted.forget(drawn)
            wanted = logits[: self._wanted(plan)]
            self._flights.append(self._draws.finish(plan, wanted, masks))

    def collect(self) -> StepResult:
        """See `Runtime.collect`."""
        result = self._collect()
        if self._host_cache is None:
            return result
        return msgspec.structs.replace(result, landed=self._host_cache.landed)

    def _collect(self) -> StepResult:
        return self._arrived(self._flights.popleft())

    def _settle(self) -> None:
        """Wait for what the steps in flight drew: the host draws next, for rows that know it."""
        self._flights = deque(self._arrived(flight) for flight in self._flights)

    def _arrived(self, flight: _Flight | StepResult) -> StepResult:
        """What a step drew, once it is there."""
        if isinstance(flight, StepResult):
            return flight
        arrived = flight.fetched.wait()
        if not flight.rows:
            return StepResult(flight.plan.step, ())
        token_ids, *best = arrived
        token_ids = token_ids[: len(flight.rows)]
        self._rows.append(flight.rows, token_ids)
        return StepResult(flight.plan.step, self._drawn(flight, token_ids, best))

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
        self._flights.clear()
        del self._graphs
        if self._host_cache is not None:
            self._host_cache.close()
        self._host_cache = self._adapters = None
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

    def _launch(self, plan: StepPlan, *, draws: bool) -> Results:
        """Launch a step: its logits, and its tokens where the device draws them."""
        size = self._graphs.size_for(len(plan.chunks)) if is_decode(plan) else 0
        form = StepForm(draws, self._packer.is_adapted(plan))
        if size:
            self._graphs.make(size, form)
        packed = self._packer.pack(plan, self._link.staging(), size)
        self._device_rows.update(packed)
        if size:
            return self._graphs.replay(size, form)
        return self._compute(packed, draws)

    def _compute_decodes(self, size: int, form: StepForm) -> Results:
        packed = Packed(0, size, size, size, size, groups=self._groups_of(size, form))
        return self._compute(packed, form.draws, one_token=True)

    def _compute(self, packed: Packed, draws: bool, *, one_token: bool = False) -> Results:
        """The step that was sent last."""
        slots = self._device_rows.prepare(packed)
        logits = self._model.logits(slots.inputs, one_token=one_token)
        if not draws:
            return logits, None
        rows: Any = SamplingRows(
            slots.temperature, slots.top_k, slots.top_p, slots.min_p, slots.seed, slots.position
        )
        self._device_rows.adjust(logits[: packed.drawing], slots)
        tokens = self._draws.sample(logits, rows)
        self._device_rows.append(packed, slots, tokens)
        return logits, tokens

    def _clear(self, size: int, form: StepForm) -> None:
        """Before a capture: the step is nobody's."""
        groups = self._groups_of(size, form)
        self._device_rows.update(self._packer.pack_nobody(self._link.staging(), size, groups))

    def _groups_of(self, size: int, form: StepForm) -> GroupWords | None:
        return self._packer.groups_of(size) if form.adapted else None

    def _wanted(self, plan: StepPlan) -> int:
        """Places of a step whose logits are wanted."""
        return sum(chunk.num_scores + chunk.samples + len(chunk.draft) for chunk in plan.chunks)

    def _fly(
        self, plan: StepPlan, drawn: list[int], logits: torch.Tensor, tokens: torch.Tensor | None
    ) -> _Flight:
        """Ask for what the host will want to know of a launched step."""
        asked = [i for i, row in enumerate(drawn) if self._rows.top_logprobs[row] is not None]
        results = [] if tokens is None else [tokens]
        if asked and tokens is not None:
            count = max(self._rows.top_logprobs[drawn[index]] or 0 for index in asked)
            rows = self._link.index(asked)
            chosen = tokens[rows.long()].clamp(min=0)
            results += self._ops.top_logprobs(logits, rows, chosen, count)
        return _Flight(plan, drawn, self._link.fetch(results), asked)

    def _drawn(self, flight: _Flight, token_ids: Ints, best: list[Any]) -> tuple[Drawn, ...]:
        logprobs = {}
        if flight.asked:
            own, ids, values = (part.tolist() for part in best)
            logprobs = dict(zip(flight.asked, zip(own, ids, values, strict=True), strict=True))
        drawn = []
        for index, (row, token) in enumerate(zip(flight.rows, token_ids.tolist(), strict=True)):
            if token < 0:
                drawn.append(Drawn(row, token, failed=True))
            elif index not in logprobs:
                drawn.append(Drawn(row, token))
            else:
                logprob, ids, values = logprobs[index]
                pairs = [p for p in zip(ids, values, strict=True) if p[1] > -math.inf]
                top = tuple(pairs[: self._rows.top_logprobs[row]])
                drawn.append(Drawn(row, token, logprob, top))
        return tuple(drawn)
