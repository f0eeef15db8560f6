"""Studies and changes the weights of a running engine: calibrations, and jobs that quantize the
weights again in a thread and put them in use between two steps.

The thread has a low priority, and works between steps while the engine is busy. All methods except
those of the job's thread are called by the engine's thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from penstock.base.errors import Conflict, ModelError, ServiceError, Unavailable
from penstock.engine.adapters.null_slot_cache import SlotCache
from penstock.engine.adapters.slot_cache import LoRASlotCache
from penstock.engine.job_pace import JobPace
from penstock.engine.saved_weights import SavedWeights
from penstock.engine.types import AdapterSource
from penstock.engine.weight_orders import (
    ApplyCalibration,
    AskWeights,
    CalibrationSums,
    CancelJob,
    JobKind,
    JobStatus,
    Requantize,
    StartCalibration,
    StopCalibration,
    WeightJob,
    WeightOrder,
    WeightsState,
    unchangeable,
)
from penstock.kernels.column_squares import Squares
from penstock.kernels.lora_slots import PackedAdapter
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix
from penstock.runtime.live_weights import LiveWeights, NewWeights

log = logging.getLogger(__name__)

NICENESS: Final = 15
RETRY_S: Final = 0.01
NO_DATA: Final = "No calibration data collected; call start first."


class _Cancelled(BaseException):
    """Ends a job in its thread. Not an Exception, so that no handler between swallows it."""


class WeightsControl:
    """The orders for the weights of one engine.

    - `live`: None if the weights cannot be changed.
    - `adapters`: the adapters, which are packed for the weights.
    - `changed`: called when other weights are in use, between two steps.
    - `wake`: called by the job's thread when `settle` has something to do.
    - `busy`: whether the engine has steps to compute; called by the job's thread.
    - `folder`: for importance matrices that clients save.
    - `saved`: remembers the weights in use; None: a restarted engine has those of its settings.
    """

    def __init__(
        self,
        live: LiveWeights | None,
        adapters: SlotCache,
        changed: Callable[[], None],
        wake: Callable[[], None],
        busy: Callable[[], bool],
        folder: Path,
    ) -> None:
        self._live = live
        self._adapters = adapters
        self._changed = changed
        self._wake = wake
        self._busy = busy
        self._folder = folder
        self.saved: SavedWeights | None = None
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._squares: Squares = {}
        self._collecting = False
        self._dataset = ""
        self._job: _Job | None = None

    @property
    def has_completions(self) -> bool:
        """Whether `settle` has something to do."""
        return not self._news.empty()

    def between_steps(self) -> None:
        """Give a job its share of the time, answer orders, and put packed weights in use."""
        if self._job is not None and self._job.is_running:
            self._job.work_between_steps()
        self.settle()

    def settle(self) -> None:
        """Answer orders, and put packed weights in use. Call this between steps."""
        while not self._news.empty():
            self._news.get()()

    def order(self, order: WeightOrder) -> Future[WeightsState]:
        """Carry out an order. Return a future that completes at once or in a later `settle`, or
        fails with Conflict or Unavailable."""
        answer: Future[WeightsState] = Future()
        try:
            self._carry_out(order, answer)
        except ServiceError as error:
            answer.set_exception(error)
        return answer

    def close(self) -> None:
        """Cancel the job and wait until its thread has ended."""
        job = self._job
        if job is None:
            return
        job.cancelled.set()
        while job.thread.is_alive():
            self.settle()
            job.thread.join(RETRY_S)

    def _carry_out(self, order: WeightOrder, answer: Future[WeightsState]) -> None:
        match order:
            case AskWeights():
                if self._live is None:
                    raise unchangeable()
            case CancelJob(kinds):
                if self._job is not None and self._job.state.kind in kinds:
                    self._job.cancelled.set()
            case StartCalibration(dataset):
                self._check_idle()
                self._squares, self._dataset = {}, dataset
                self._collect(True)
            case StopCalibration():
                self._squares = {}
                self._collect(False)
            case Requantize(quantization):
                self._start("re_isq", quantization, answer)
                return
            case ApplyCalibration():
                self._apply(order, answer)
                return
        answer.set_result(self._state())

    def _check_idle(self) -> LiveWeights:
        """Return the live weights. Raises Conflict if there are none or a job runs."""
        if self._live is None:
            raise unchangeable()
        if self._job is not None and self._job.is_running:
            raise Conflict(
                "the weights are being quantized; wait for the job, or cancel it",
                code="requantization_running",
            )
        return self._live

    def _collect(self, collecting: bool) -> None:
        if self._live is not None:
            self._live.collect(self._squares if collecting else None)
        self._collecting = collecting and self._live is not None

    def _apply(self, order: ApplyCalibration, answer: Future[WeightsState]) -> None:
        live = self._check_idle()
        if not any(squares.counts.any() for squares in self._squares.values()):
            raise Conflict(NO_DATA, code="no_calibration_data")
        quantization = order.quantization or live.quantization
        if quantization is None:
            raise Conflict(
                "the weights are not quantized; name the type to make as `ggml_type`",
                field="ggml_type",
                code="weights_not_quantized",
            )
        rows = self._sums().max_rows
        importance = live.importance(self._squares, (self._dataset,), max(rows // CHUNK_SIZE, 1))
        before = self._state()
        self._collect(False)
        save_as = None if order.save_as is None else self._folder / order.save_as
        self._start("calibration", quantization, answer, importance, save_as, before)

    def _start(
        self,
        kind: JobKind,
        quantization: str | None,
        answer: Future[WeightsState],
        importance: ImportanceMatrix | None = None,
        save_as: Path | None = None,
        before: WeightsState | None = None,
    ) -> None:
        """Start a job. `answer` gets the state when the model's files have been checked, or their
        error. `before`: the state whose calibration is answered."""
        live = self._check_idle()

        def opened(error: ServiceError | None) -> None:
            if error is not None:
                answer.set_exception(error)
                return
            state = self._state()
            if before is not None:
                state = msgspec.structs.replace(state, calibration=before.calibration)
            answer.set_result(state)

        job = _Job(live, WeightJob(kind, quantization, "running", 0, 0), importance, save_as)
        job.post = self._post
        job.opened = opened
        job.install = self._install
        job.read = self._read_adapter
        job.saved = self.saved
        job.busy = self._busy
        try:
            job.thread.start()
        except RuntimeError:
            raise Unavailable("there is no thread for the job now", retry_after_s=1) from None
        self._job = job

    def _post(self, news: Callable[[], None]) -> None:
        self._news.put(news)
        self._wake()

    def _install(self, job: _Job, new: NewWeights, packed: dict[str, PackedAdapter]) -> _Attempt:
        """Put packed weights in use, if all adapters in memory are packed for them."""
        if job.cancelled.is_set():
            raise _Cancelled
        assert self._live is not None
        if not self._switch_adapters(new, packed):
            return _Attempt(False, self._adapters.resident())
        old = self._live.install(new)
        self._changed()
        return _Attempt(True, (), old)

    def _switch_adapters(self, new: NewWeights, packed: dict[str, PackedAdapter]) -> bool:
        if not isinstance(self._adapters, LoRASlotCache):
            return True
        assert new.adapters is not None, "as the old weights have"
        return self._adapters.switch(new.adapters, packed)

    def _read_adapter(self, source: AdapterSource, new: NewWeights) -> PackedAdapter:
        assert isinstance(self._adapters, LoRASlotCache) and new.adapters is not None
        return self._adapters.read(source, new.adapters)

    def _state(self) -> WeightsState:
        return WeightsState(
            quantization=None if self._live is None else self._live.quantization,
            calibration=self._sums(),
            job=None if self._job is None else self._job.state,
        )

    def _sums(self) -> CalibrationSums:
        rows = [int(squares.counts.sum()) for squares in self._squares.values()]
        tracking = [count for count in rows if count]
        return CalibrationSums(
            collecting=self._collecting,
            layers=0 if self._live is None else self._live.num_linears,
            layers_tracking=len(tracking),
            total_rows=sum(rows),
            min_rows=min(tracking, default=0),
            max_rows=max(tracking, default=0),
        )


class _Attempt:
    """The result of an attempt to install weights. `resident`: the adapters in memory, for which
    packed adapters are needed. `old`: the old weights."""

    def __init__(
        self, installed: bool, resident: tuple[AdapterSource, ...], old: object = None
    ) -> None:
        self.installed = installed
        self.resident = resident
        self.old = old


class _Job:
    """A job that quantizes the weights again. `thread` runs it.

    - `post`: runs a function in the engine's thread, between two steps.
    - `opened`, `install`, `read`, `saved`, `busy`: those of the control.
    """

    post: Callable[[Callable[[], None]], None]
    opened: Callable[[ServiceError | None], None]
    install: Callable[[_Job, NewWeights, dict[str, PackedAdapter]], _Attempt]
    read: Callable[[AdapterSource, NewWeights], PackedAdapter]
    saved: SavedWeights | None
    busy: Callable[[], bool]

    def __init__(
        self,
        live: LiveWeights,
        state: WeightJob,
        importance: ImportanceMatrix | None,
        save_as: Path | None,
    ) -> None:
        self._live = live
        self._importance = importance
        self._save_as = save_as
        self.state = state
        self.cancelled = threading.Event()
        self._pace: JobPace | None = None
        self.thread = threading.Thread(target=self._run, name="penstock-quantize", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the job has no final status yet."""
        return self.state.status == "running"

    def work_between_steps(self) -> None:
        """Let the thread work for a while. Called by the engine's thread."""
        if self._pace is not None:
            self._pace.between_steps()

    def finish(self, status: JobStatus, error: str | None = None) -> None:
        """Set the final status of the job."""
        self.state = msgspec.structs.replace(self.state, status=status, error=error)

    def _run(self) -> None:
        """Quantize, and report how it ended. The thread's outermost loop."""
        _lower_priority()
        new: NewWeights | None = None
        try:
            new = self._open()
        except _Cancelled:
            self.finish("cancelled")
            self.post(lambda: self.opened(None))
            return
        except ServiceError as error:
            self.finish("failed", error.message)
            refusal = error
            self.post(lambda: self.opened(refusal))
            return
        self.post(lambda: self.opened(None))
        self._pace = JobPace(self.busy, self.cancelled)
        try:
            new.pack(self._packed)
            attempt = self._install(new)
        except _Cancelled:
            self.finish("cancelled")
        except ServiceError as error:
            self.finish("failed", error.message)
        except Exception:
            log.exception("the weights could not be quantized")
            self.finish("failed", "the server's log says why")
        else:
            self._remember()
            self.finish("done")  # after remembering: from now on a restarted engine has them
            del attempt  # frees the old weights, which takes a while, in this thread

    def _open(self) -> NewWeights:
        """Check the model's files and the free memory, and save the importance matrix. Raises
        ServiceError."""
        try:
            if self._importance is not None and self._save_as is not None:
                self._save_as.parent.mkdir(parents=True, exist_ok=True)
                self._importance.write(self._save_as)
            new = self._live.open(self.state.quantization, self._importance, self._rest)
        except ModelError as error:
            log.error("the weights cannot be quantized: %s", error)
            raise Conflict(
                "the model's files cannot be quantized; the server's log says why",
                code="requantization_failed",
            ) from None
        except OSError as error:
            log.error("the importance matrix cannot be saved: %s", error)
            raise Unavailable("the importance matrix cannot be saved", code="disk_failed") from None
        if new.free_bytes is not None and new.needed_bytes > new.free_bytes:
            raise Unavailable(
                f"the new weights need {new.needed_bytes} bytes beside the old ones, and"
                f" {new.free_bytes} bytes are free",
                code="out_of_memory",
            )
        self._report(0, new.num_layers)
        return new

    def _rest(self) -> None:
        """Rest after a piece of work."""
        assert self._pace is not None, "the job packs"
        self._pace.rest()
        if self.cancelled.is_set():
            raise _Cancelled

    def _packed(self, done: int, total: int) -> None:
        self._rest()
        self._report(done, total)

    def _report(self, done: int, total: int) -> None:
        if self.cancelled.is_set():
            raise _Cancelled
        self.state = msgspec.structs.replace(self.state, layers_done=done, layers_total=total)

    def _install(self, new: NewWeights) -> _Attempt:
        """Have the weights put in use, with the adapters in memory packed for them."""
        packed: dict[str, PackedAdapter] = {}
        while True:
            attempt = self._attempt(new, packed)
            if attempt.installed:
                return attempt
            missing = [one for one in attempt.resident if one.revision not in packed]
            packed |= {one.revision: self.read(one, new) for one in missing}
            if not missing:  # another one is being read
                time.sleep(RETRY_S)

    def _attempt(self, new: NewWeights, packed: dict[str, PackedAdapter]) -> _Attempt:
        answer: Future[_Attempt] = Future()

        def attempt() -> None:
            try:
                answer.set_result(self.install(self, new, packed))
            except BaseException as error:
                answer.set_exception(error)

        self.post(attempt)
        return answer.result()

    def _remember(self) -> None:
        log.info("the weights are quantized as %s now", self.state.quantization)
        if self.saved is not None:
            try:
                self.saved.save(self.state.quantization, self._importance)
            except OSError as error:
                log.error("the weights in use cannot be remembered: %s", error)


def _lower_priority() -> None:
    """Let all other threads go first. On Linux, threads have priorities of their own, which the
    threads that they start inherit."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
