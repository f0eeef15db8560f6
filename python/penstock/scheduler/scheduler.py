"""The scheduler of one engine: accepts requests, plans steps and commits their results.

Each step computes known tokens of sequences that are not computed yet: one token of a sequence that
decodes, or a part of a prompt (a prefill chunk). Decodes and prefill chunks share a step.
"""

from __future__ import annotations

from itertools import groupby, islice
from operator import attrgetter

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.cpu_kv_cache import CpuKvCacheIndex
from penstock.scheduler.drafting import Drafting
from penstock.scheduler.gauges import SchedulerGauges
from penstock.scheduler.guide import Guide
from penstock.scheduler.limits import QueueBound, check_scores, checked_limit, step_token_limit
from penstock.scheduler.output_processor import OutputProcessor
from penstock.scheduler.planning_ahead import must_wait_for_commit
from penstock.scheduler.queues import SequenceQueues
from penstock.scheduler.sequence import FinishReason, NewSequence, Progress, Sequence
from penstock.scheduler.state_snapshots import StateSnapshots
from penstock.scheduler.step_builder import StepBuilder
from penstock.scheduler.step_planner import StepPlanner
from penstock.scheduler.types import NO_ADAPTER, Chunk, DraftSource, StepPlan, StepResult


class Scheduler:
    """Manages the queue, the rows and the KV blocks of one engine.

    One step is in flight at a time: `plan`, execution, `commit`. `submit`, `enqueue_unready`,
    `make_ready` and `abort` may come between any of these. If the runtime can compute while the CPU
    reads the samples of the step in flight, `plan_ahead` plans a second step before the first is
    committed.

    `num_blocks`, `block_size`: number of KV blocks, and tokens per block.
    `max_num_seqs`: number of rows.
    `max_queue`: a request is accepted while fewer requests than this wait without a free row.
    `max_model_len`: most tokens of a sequence.
    `max_num_batched_tokens`: most tokens of a step; see `step_token_limit`.
    `no_kv_cache`: every step recomputes the whole context of each of its sequences.
    `speculation`: use speculative decoding.
    `drafter`, `max_drafts`: the source of the drafts that the runtime proposes, and the most tokens
    of one; None without a drafter.
    `cpu_cache`: the index of the CPU KV cache, None without one.
    `secret`: the key of the prefix hash; None generates one.
    `state_snapshots`: number of snapshots of recurrent states, without which a model with recurrent
    layers finds no cached prefix; None if the model has no recurrent layers.
    `tells_prompts_apart`: see `RuntimeInfo`.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_queue: int = 1024,
        prefix_caching: bool = True,
        no_kv_cache: bool = False,
        speculation: bool = False,
        drafter: DraftSource | None = None,
        max_drafts: int = 0,
        cpu_cache: CpuKvCacheIndex | None = None,
        secret: bytes | None = None,
        state_snapshots: int | None = None,
        tells_prompts_apart: bool = False,
    ) -> None:
        assert min(num_blocks, block_size, max_model_len, max_num_seqs, max_num_batched_tokens) > 0
        self._keeps_cache = not no_kv_cache
        self._speculates = speculation and not no_kv_cache
        assert state_snapshots is None or cpu_cache is None or not cpu_cache.num_blocks
        caches_prefixes = prefix_caching and not no_kv_cache and state_snapshots != 0
        self._snapshots = (
            StateSnapshots(state_snapshots) if state_snapshots and caches_prefixes else None
        )
        self._cache = BlockCache(
            num_blocks,
            block_size,
            prefix_caching=caches_prefixes,
            secret=secret,
            cpu_cache=cpu_cache,
            snapshots=self._snapshots,
            tells_prompts_apart=tells_prompts_apart,
        )
        self._is_recurrent = state_snapshots is not None
        self._queues = SequenceQueues(self._cache, max_num_seqs)
        self._step_tokens = step_token_limit(
            max_num_batched_tokens, max_model_len, no_kv_cache=no_kv_cache
        )
        self._drafting = None
        if drafter is not None and max_drafts > 0 and self._speculates:
            self._drafting = Drafting(drafter, max_drafts)
        self._planner = StepPlanner(
            self._queues,
            self._step_tokens,
            keeps_cache=self._keeps_cache,
            speculates=self._speculates,
            drafting=self._drafting,
        )
        self._output_processor = OutputProcessor(self._cache, keeps_cache=self._keeps_cache)
        self._max_model_len = max_model_len
        self._bound = QueueBound(max_queue)
        self._sequences: dict[str, Sequence] = {}
        self._unready: dict[str, Sequence] = {}
        self._arrivals = 0
        self._step = 0
        self._in_flight: StepBuilder | None = None
        self._ahead: StepBuilder | None = None
        self._tokens_processed = 0
        self._last_step_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a ready request is unfinished, so that `plan` returns a plan."""
        return bool(self._queues.running or self._queues.waiting)

    def submit(
        self, new: NewSequence, guide: Guide | None = None, adapter_slot: int = NO_ADAPTER
    ) -> None:
        """Queue a request whose guide, adapter and media are ready. Raises the errors of
        `enqueue_unready`."""
        self.enqueue_unready(new)
        self.make_ready(new.id, guide, adapter_slot)

    def enqueue_unready(self, new: NewSequence) -> None:
        """Accept a request whose guide, adapter or media are still being prepared. Its id must be
        unused.
        The request waits for `make_ready`, and other requests pass it.

        Raises InvalidRequest for an empty prompt, max_tokens < 0, a `whole` media span longer than
        a step, or prompt log-probabilities of one in a model with recurrent layers,
        ContextLengthExceeded for a sequence that could never fit, Overloaded if the
        queue is full.
        """
        assert new.id not in self._sequences, f"request {new.id} is already here"
        known_limit = checked_limit(
            new, self._max_model_len, self._cache.capacity_tokens, self._step_tokens
        )
        if self._is_recurrent:
            check_scores(new)
        queued = len(self._queues.waiting) + len(self._unready)
        self._bound.check(new.group, queued, len(self._queues.free_rows))
        sequence = Sequence.of(new, known_limit)
        self._sequences[new.id] = self._unready[new.id] = sequence
        self._bound.enter(new.group)

    def make_ready(self, id: str, guide: Guide | None, adapter_slot: int = NO_ADAPTER) -> bool:
        """Queue a request that `enqueue_unready` accepted, with its guide and adapter slot. Return
        False if the request has been aborted."""
        sequence = self._unready.pop(id, None)
        if sequence is None:
            return False
        self._enqueue(sequence, guide, adapter_slot)
        return True

    def abort(self, id: str, reason: FinishReason = "abort") -> bool:
        """Drop a request; no Progress of it follows. Return False if the request has finished or is
        unknown."""
        sequence = self._sequences.pop(id, None)
        if sequence is None:
            return False
        self._bound.leave(sequence.group)
        self._output_processor.completed[reason] += 1
        if self._unready.pop(id, None) is not None:
            return True
        if sequence.row < 0:
            self._queues.waiting.remove(sequence)
        elif sequence.in_flight_tokens:
            sequence.aborted = True  # the step in flight still writes to the sequence's blocks
        else:
            self._queues.running.remove(sequence)
            self._queues.free(sequence)
        return True

    def plan(self) -> StepPlan | None:
        """Return the next step, or None if there is no work."""
        assert self._in_flight is None, "plan() before commit() of the step before"
        if not self.has_work:
            return None
        builder = self._planner.build()
        assert builder is not None, "the oldest request always advances"
        self._in_flight = builder
        return self._start(builder)

    def plan_ahead(self) -> StepPlan | None:
        """Return the step after the step in flight, to be submitted before the latter is committed.
        Return None if the next step depends on the samples of the step in flight. Waiting requests
        may join the new step."""
        assert self._in_flight is not None and self._ahead is None, "no step to plan ahead of"
        if self._speculates or not self._keeps_cache:
            return None
        queues = self._queues
        joining = islice(queues.waiting, queues.max_candidates())
        if must_wait_for_commit(self._in_flight, queues.running, joining, self._cache):
            return None
        builder = self._planner.build()
        if builder is None:
            return None
        self._ahead = builder
        return self._start(builder)

    def change_weights(self) -> None:
        """Note that the model has other weights from the next step on: nothing that was computed
        with the old ones is shared with later sequences. Running sequences go on with the keys,
        values and recurrent states that they have. Call this between steps."""
        assert self._in_flight is None, "the weights change between steps"
        waiting = (*self._queues.waiting, *self._unready.values())
        self._cache.change_weights(self._queues.running, waiting)

    def pause_s(self, others: int) -> float | None:
        """Return how many seconds the engine may do other work before the next step, so that the
        step and that work keep the bound of `PrefillBudget` on the time between tokens. If prompts
        are being computed too, both get half of the time. Return None if there are no requests.

        - `others`: requests that wait for the other work.
        """
        continuing, waiting = self._queues.continuing, len(self._queues.waiting)
        if not continuing and not waiting:
            return None
        decodes = sum(sequence.decoding for sequence in continuing)
        prompts = len(continuing) - decodes + waiting
        if not decodes:
            return self._last_step_s
        extra_s = self._planner.prefill_budget.extra_s(decodes, prompts + others)
        return extra_s / 2 if prompts else extra_s

    def pause(self, seconds: float) -> None:
        """Take `seconds`, which other work took, from the prefill of the next step."""
        self._planner.prefill_budget.taken_s = seconds

    @property
    def mask_inputs(self) -> list[tuple[Guide | None, tuple[int, ...]]]:
        """The guide and the draft tokens of each sampling chunk of the last planned step, in the
        order of the plan. A sequence that ended since has no guide."""
        builder = self._ahead or self._in_flight
        assert builder is not None, "no step is planned"
        return [
            (None if sequence.aborted else sequence.guide, chunk.draft_tokens)
            for sequence, chunk in zip(builder.sequences, builder.chunks, strict=True)
            if chunk.samples
        ]

    @property
    def masks_need_commit(self) -> bool:
        """Whether a step is planned ahead whose token masks depend on the step in flight."""
        return self._ahead is not None and any(
            guide is not None and not guide.idle for guide, _ in self.mask_inputs
        )

    def commit(self, result: StepResult, duration_s: float | None = None) -> list[Progress]:
        """Apply the result of the oldest step in flight and return the progress of its sequences.
        `duration_s`: how long the step took, which determines how many prefill tokens join later
        steps."""
        builder, self._in_flight, self._ahead = self._in_flight, self._ahead, None
        assert builder is not None and result.step == builder.step, "commit() of another step"
        self._cache.cpu_cache.last_restored = max(
            self._cache.cpu_cache.last_restored, result.last_restored
        )
        self._tokens_processed += builder.num_tokens
        self._planner.prefill_budget.taken_s = 0.0
        if duration_s is not None:
            self._last_step_s = duration_s
            own_s = max(duration_s - result.draft_s, 0.0)
            self._planner.prefill_budget.observe(builder.num_tokens, own_s)
            if all(chunk.samples and chunk.length == 1 for chunk in builder.chunks):
                rows, drafts_of_step = len(builder.chunks), builder.num_draft_tokens
                self._planner.step_costs.observe(rows, drafts_of_step, own_s)
        if self._drafting is not None:
            self._drafting.seconds += result.draft_s
            if builder.drafts is not None and not builder.drafts.lags:
                self._drafting.measure(builder.chunks, result)
        progress: list[Progress] = []
        sampled = {row: list(group) for row, group in groupby(result.sampled, attrgetter("row"))}
        scored = {row: tuple(group) for row, group in groupby(result.scored, attrgetter("row"))}
        drafts = {draft.row: draft.token_ids for draft in result.drafts}
        freed = False
        for sequence, chunk in zip(builder.sequences, builder.chunks, strict=True):
            sequence.finish_chunk(chunk)
            own = sampled.pop(chunk.row, [])
            assert bool(own) == chunk.samples, "tokens sampled that the plan did not ask for"
            if not sequence.aborted:
                scores = scored.get(chunk.row, ())
                if not self._output_processor.process(sequence, chunk, own, scores, progress):
                    _keep_drafts(sequence, chunk, len(own), drafts.get(chunk.row, ()))
                    continue
                del self._sequences[sequence.id]
                self._bound.leave(sequence.group)
            # The next step, if planned ahead, still writes to the blocks of the sequence.
            sequence.aborted = sequence.in_flight_tokens > 0
            if not sequence.aborted:
                self._queues.free(sequence)
                freed = True
        for chunk in builder.chunks:
            self._cache.finish_state(chunk)
        assert not sampled, "tokens sampled for rows that the plan does not have"
        if freed:
            self._queues.drop_freed()
        return progress

    def gauges(self) -> SchedulerGauges:
        """Return a snapshot of gauges and counters."""
        cache, queues, output = self._cache, self._queues, self._output_processor
        snapshots = self._snapshots
        return SchedulerGauges(
            sequences_running=len(queues.running),
            sequences_waiting=len(queues.waiting) + len(self._unready),
            sequences_capacity=queues.max_num_seqs,
            kv_cache_blocks_used=cache.pool.num_used,
            kv_cache_blocks_total=cache.pool.num_blocks,
            tokens_processed=self._tokens_processed,
            prefix_cache_lookups=cache.lookups,
            prefix_cache_hits=cache.hits,
            prefix_cache_evictions=cache.index.evictions,
            preemptions=queues.preemptions,
            completed_stop=output.completed["stop"],
            completed_length=output.completed["length"],
            completed_abort=output.completed["abort"],
            completed_error=output.completed["error"],
            generated_tokens=output.generated_tokens,
            forced_tokens=output.forced_tokens,
            draft_tokens=output.draft_tokens.total(),
            accepted_tokens=output.accepted_tokens.total(),
            ngram_draft_tokens=output.draft_tokens["ngram"],
            ngram_accepted_tokens=output.accepted_tokens["ngram"],
            draft_model_draft_tokens=output.draft_tokens["draft_model"],
            draft_model_accepted_tokens=output.accepted_tokens["draft_model"],
            mtp_draft_tokens=output.draft_tokens["mtp"],
            mtp_accepted_tokens=output.accepted_tokens["mtp"],
            draft_seconds=self._drafting.seconds if self._drafting else 0.0,
            host_cache_blocks_used=cache.cpu_cache.num_used,
            host_cache_blocks_total=cache.cpu_cache.num_blocks,
            host_cache_saves=cache.cpu_cache.saved,
            host_cache_restores=cache.cpu_cache.restored,
            state_snapshots_used=snapshots.num_used if snapshots else 0,
            state_snapshots_total=snapshots.num_slots if snapshots else 0,
            state_snapshot_saves=snapshots.saves if snapshots else 0,
            state_snapshot_restores=snapshots.restores if snapshots else 0,
            state_snapshot_evictions=snapshots.evictions if snapshots else 0,
        )

    def _start(self, builder: StepBuilder) -> StepPlan:
        """Return the StepPlan of a step, and count its chunks as in flight."""
        self._step += 1
        builder.step = self._step
        assert self._step == self._cache.cpu_cache.step
        for sequence, chunk in zip(builder.sequences, builder.chunks, strict=True):
            sequence.start_chunk(chunk, keeps_cache=self._keeps_cache)
        saves, restores, awaits = self._cache.cpu_cache.take_plans()
        return StepPlan(
            step=self._step,
            releases=self._queues.take_releases(),
            admissions=tuple(builder.admissions),
            blocks=tuple(builder.blocks),
            chunks=tuple(builder.chunks),
            forced=tuple(builder.forced),
            saves=saves,
            restores=restores,
            awaits=max(awaits, builder.awaits),
        )

    def _enqueue(self, sequence: Sequence, guide: Guide | None, adapter_slot: int) -> None:
        """Queue a sequence for a row. The tokens that its guide forces at the start are computed
        with the prompt. They leave room for one sampled token, which ends the sequence if nothing
        ends it before."""
        sequence.guide = guide
        sequence.adapter_slot = adapter_slot
        sequence.known_limit -= 1
        sequence.unreported += sequence.force()
        sequence.known_limit += 1
        sequence.arrival, sequence.arrived_at = self._arrivals, self._planner.prefilled
        self._arrivals += 1
        self._queues.waiting.append(sequence)


def _keep_drafts(
    sequence: Sequence, chunk: Chunk, num_sampled: int, drafts: tuple[int, ...]
) -> None:
    """Keep the draft tokens that follow the `num_sampled` tokens sampled after `chunk`."""
    assert len(drafts) <= chunk.num_drafts, "drafts that the plan did not ask for"
    if drafts and sequence.speculator is not None:
        after = chunk.start + chunk.length + num_sampled
        sequence.speculator.keep(drafts, sequence.tokens, after)
