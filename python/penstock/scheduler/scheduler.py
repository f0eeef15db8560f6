"""Plans steps: each step lets the computed tokens of requests catch up with the known ones.

There is no prompt phase and no decode phase. Under one token budget, sequences that draw come
first. Unfinished prompts share the rest, running or waiting (`prefill.py`). When blocks run
out, the newest running sequence gives its own back and returns to the queue with its tokens.

`running` and `waiting` are each in order of arrival. A waiting sequence is admitted before an older
one only if the older one waits for tokens of the step, for a prefix that another is computing, or
for prompt scores, and only if a row and the blocks that the oldest one needs stay free. If the
oldest one waits for a row or for blocks, nobody passes it. So the oldest request always advances,
and nobody starves.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.cpu_kv_cache import CpuKvCacheIndex
from penstock.scheduler.draft_tokens import propose_draft_tokens
from penstock.scheduler.gauges import SchedulerGauges
from penstock.scheduler.guide import Guide
from penstock.scheduler.limits import checked_limit, step_token_limit
from penstock.scheduler.ngram_speculation import MAX_DRAFT_TOKENS
from penstock.scheduler.output_processor import OutputProcessor
from penstock.scheduler.planning_ahead import must_wait_for_commit
from penstock.scheduler.prefill import PrefillShares, due
from penstock.scheduler.prefill_budget import PrefillBudget
from penstock.scheduler.queue_bound import QueueBound
from penstock.scheduler.sequence import FinishReason, NewSequence, Progress, Sequence
from penstock.scheduler.step_builder import StepBuilder
from penstock.scheduler.types import NO_ADAPTER, AppendBlocks, StepPlan, StepResult

MOST_PASSED: Final = 32
"""A step looks for waiting sequences to admit behind so many older ones, not further: each costs a
lookup of its prefix."""


class Scheduler:
    """One engine's queue, rows and blocks. One step is in flight at a time: `plan`, execution,
    `commit`. `submit`, `enqueue_unready`, `make_ready` and `abort` may come between any of these.
    A runtime that
    computes on while the host looks at what it drew may have a second one: `plan_ahead`, before the
    `commit` of the first.

    `num_blocks` blocks of `block_size` tokens; `max_num_seqs` rows; a request is taken while fewer
    than `max_queue` wait for which there is no row; no sequence has more than `max_model_len`
    tokens; no step more than `step_token_limit(...)`. `no_kv_cache`: every step recomputes the
    whole context of each sequence in it. `speculation`: guess tokens where it pays. `cpu_cache`:
    the
    host's part of the cache, None without one. `secret` keys the prefix hash; None makes one.
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
        cpu_cache: CpuKvCacheIndex | None = None,
        secret: bytes | None = None,
    ) -> None:
        assert min(num_blocks, block_size, max_model_len, max_num_seqs, max_num_batched_tokens) > 0
        self._cache = BlockCache(
            num_blocks,
            block_size,
            prefix_caching=prefix_caching and not no_kv_cache,
            secret=secret,
            cpu_cache=cpu_cache,
        )
        self._budget = step_token_limit(
            max_num_batched_tokens, max_model_len, no_kv_cache=no_kv_cache
        )
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._bound = QueueBound(max_queue)
        self._keeps_cache = not no_kv_cache
        self._speculates = speculation and not no_kv_cache
        self._prefill_budget = PrefillBudget(min_share=block_size)
        self._sequences: dict[str, Sequence] = {}
        self._unready: dict[str, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._releases: list[int] = []
        self._arrivals = 0
        self._prefilled = 0
        self._step = 0
        self._in_flight: StepBuilder | None = None
        self._ahead: StepBuilder | None = None
        self._stalled: tuple[str, int] = ("", 0)
        self._tokens_processed = 0
        self._preemptions = 0
        self._output_processor = OutputProcessor(self._cache, keeps_cache=self._keeps_cache)

    @property
    def has_work(self) -> bool:
        """Is any request unfinished and not held? Then `plan` gives a plan."""
        return bool(self._running or self._waiting)

    def submit(
        self, new: NewSequence, guide: Guide | None = None, adapter_slot: int = NO_ADAPTER
    ) -> None:
        """Queue a request for which all is there: what steers it, and its adapter in this slot.
        Raises as `enqueue_unready`."""
        self.enqueue_unready(new)
        self.make_ready(new.id, guide, adapter_slot)

    def enqueue_unready(self, new: NewSequence) -> None:
        """Take in a request, under an id that is not in use, whose guide is not made yet, or whose
        adapter is not in memory: it waits for `make_ready`, and others pass it.

        Raises InvalidRequest for an empty prompt or max_tokens < 0, ContextLengthExceeded for a
        sequence that could never fit, Overloaded when the queue is full.
        """
        assert new.id not in self._sequences, f"request {new.id} is already here"
        known_limit = checked_limit(new, self._max_model_len, self._cache.capacity_tokens)
        queued = len(self._waiting) + len(self._unready)
        self._bound.check(new.group, queued, len(self._free_rows))
        sequence = Sequence.of(new, known_limit)
        self._sequences[new.id] = self._unready[new.id] = sequence
        self._bound.enter(new.group)

    def make_ready(self, id: str, guide: Guide | None, adapter_slot: int = NO_ADAPTER) -> bool:
        """What a held request waited for is there. False if the request is not (any more)."""
        sequence = self._unready.pop(id, None)
        if sequence is None:
            return False
        self._queue(sequence, guide, adapter_slot)
        return True

    def abort(self, id: str, reason: FinishReason = "abort") -> bool:
        """Drop a request: no Progress of it follows. False if it is not here (any more)."""
        sequence = self._sequences.pop(id, None)
        if sequence is None:
            return False
        self._bound.leave(sequence.group)
        self._output_processor.completed[reason] += 1
        if self._unready.pop(id, None) is not None:
            return True
        if sequence.row < 0:
            self._waiting.remove(sequence)
        elif sequence.in_flight_tokens:
            sequence.aborted = True  # the step still writes to its blocks
        else:
            self._running.remove(sequence)
            self._free_sequence(sequence)
        return True

    def plan(self) -> StepPlan | None:
        """The next step, or None when there is no work."""
        assert self._in_flight is None, "plan() before commit() of the step before"
        if not self.has_work:
            return None
        builder = self._build_step()
        assert builder is not None, "the oldest request always advances"
        self._in_flight = builder
        return self._as_plan(builder)

    def plan_ahead(self) -> StepPlan | None:
        """The step after the one in flight, to be executed before that one is committed; None if it
        depends on what that one samples. Waiting requests may join it."""
        assert self._in_flight is not None and self._ahead is None, "nothing to plan ahead of"
        if self._speculates or not self._keeps_cache:
            return None
        joining = islice(self._waiting, self._most_joining())
        if must_wait_for_commit(self._in_flight, self._running, joining, self._cache):
            return None
        builder = self._build_step()
        if builder is None:
            return None
        self._ahead = builder
        return self._as_plan(builder)

    def _build_step(self) -> StepBuilder | None:
        """The next step; None, and nothing is changed, if it has nothing to compute."""
        builder = StepBuilder(self._budget, self._budget)
        if self._keeps_cache:
            self._plan_decodes(builder)
        decodes = len(builder.chunks)
        if decodes > 0:
            staying = sum(not sequence.is_finishing for sequence in self._running)
            prompts = staying - decodes + len(self._waiting)
            builder.limit_prefill(self._prefill_budget.prefill_tokens(decodes, prompts))
        num_sampled = min(self._max_num_seqs, len(self._running) + len(self._waiting))
        builder.score_room = (
            self._max_num_seqs + MAX_DRAFT_TOKENS - builder.num_draft_tokens - num_sampled
        )
        if self._keeps_cache:
            self._plan_prefills(builder)
        else:
            self._plan_whole_contexts(builder)
        going_on = [sequence for sequence in self._running if not sequence.is_finishing]
        if not builder.chunks and going_on:  # all that there is waits for the host
            builder.add_prefill(going_on[0], builder.prefill_budget)
        return builder if builder.chunks else None

    @property
    def mask_inputs(self) -> list[tuple[Guide | None, tuple[int, ...]]]:
        """Guide and draft tokens of each chunk that samples in the step planned last, in the plan's
        order."""
        builder = self._ahead or self._in_flight
        assert builder is not None, "no step is planned"
        pairs = zip(builder.sequences, builder.chunks, strict=True)
        return [(sequence.guide, chunk.draft_tokens) for sequence, chunk in pairs if chunk.samples]

    def commit(self, result: StepResult, duration_s: float | None = None) -> list[Progress]:
        """Take in what the planned step drew. `duration_s`: how long its execution took; it
        steers how many prompt tokens join decoding steps."""
        builder, self._in_flight, self._ahead = self._in_flight, self._ahead, None
        assert builder is not None and result.step == builder.step, "commit() of another step"
        self._cache.cpu_cache.last_restored = max(
            self._cache.cpu_cache.last_restored, result.last_restored
        )
        self._tokens_processed += builder.num_tokens
        if duration_s is not None:
            self._prefill_budget.observe(builder.num_tokens, duration_s)
        progress: list[Progress] = []
        sampled = {row: list(group) for row, group in groupby(result.sampled, attrgetter("row"))}
        scored = {row: tuple(group) for row, group in groupby(result.scored, attrgetter("row"))}
        freed = False
        for sequence, chunk in zip(builder.sequences, builder.chunks, strict=True):
            sequence.finish_chunk(chunk)
            own = sampled.pop(chunk.row, [])
            assert bool(own) == chunk.samples, "tokens sampled that the plan did not ask for"
            if not sequence.aborted:
                scores = scored.get(chunk.row, ())
                if not self._output_processor.process(sequence, chunk, own, scores, progress):
                    continue
                del self._sequences[sequence.id]
                self._bound.leave(sequence.group)
            sequence.aborted = (
                sequence.in_flight_tokens > 0
            )  # the next step still writes to its blocks
            if not sequence.aborted:
                self._free_sequence(sequence)
                freed = True
        assert not sampled, "tokens sampled for rows that the plan does not have"
        if freed:
            self._running = [sequence for sequence in self._running if sequence.row >= 0]
        return progress

    def gauges(self) -> SchedulerGauges:
        """The state of the moment."""
        cache, completed = self._cache, self._output_processor.completed
        return SchedulerGauges(
            sequences_running=len(self._running),
            sequences_waiting=len(self._waiting) + len(self._unready),
            sequences_capacity=self._max_num_seqs,
            kv_cache_blocks_used=cache.pool.num_used,
            kv_cache_blocks_total=cache.pool.num_blocks,
            tokens_processed=self._tokens_processed,
            prefix_cache_lookups=cache.lookups,
            prefix_cache_hits=cache.hits,
            prefix_cache_evictions=cache.index.evictions,
            preemptions=self._preemptions,
            completed_stop=completed["stop"],
            completed_length=completed["length"],
            completed_abort=completed["abort"],
            completed_error=completed["error"],
            forced_tokens=self._output_processor.forced_tokens,
            draft_tokens=self._output_processor.draft_tokens,
            accepted_tokens=self._output_processor.accepted_tokens,
            host_cache_blocks_used=cache.cpu_cache.num_used,
            host_cache_blocks_total=cache.cpu_cache.num_blocks,
            host_cache_saves=cache.cpu_cache.saved,
            host_cache_restores=cache.cpu_cache.restored,
        )

    def _as_plan(self, builder: StepBuilder) -> StepPlan:
        """A step that is about to be submitted."""
        self._step += 1
        builder.step = self._step
        assert self._step == self._cache.cpu_cache.step
        for sequence, chunk in zip(builder.sequences, builder.chunks, strict=True):
            sequence.start_chunk(chunk, keeps_cache=self._keeps_cache)
        saves, restores, awaits = self._cache.cpu_cache.take_plans()
        releases, self._releases = tuple(self._releases), []
        return StepPlan(
            step=self._step,
            releases=releases,
            admissions=tuple(builder.admissions),
            blocks=tuple(builder.blocks),
            chunks=tuple(builder.chunks),
            forced=tuple(builder.forced),
            saves=saves,
            restores=restores,
            awaits=max(awaits, builder.awaits),
        )

    def _may_admit(self) -> bool:
        """Whether the next of those who wait may get a row, as far as that is known."""
        if not self._waiting or not self._free_rows:
            return False
        spare = self._cache.pool.num_free - len(self._running)
        return self._stalled[0] != self._waiting[0].id or spare > self._stalled[1]

    def _most_joining(self) -> int:
        """How far from the oldest of those who wait the next step may admit any: only the oldest
        one takes the last free row."""
        if not self._may_admit():
            return 0
        free = len(self._free_rows)
        return free if free == 1 else free + MOST_PASSED

    def _queue(self, sequence: Sequence, guide: Guide | None, adapter_slot: int) -> None:
        """Wait for a row. What the guide forces at the start is computed with the prompt, but for
        one token: the first draw ends the sequence, if nothing else does."""
        sequence.guide = guide
        sequence.adapter_slot = adapter_slot
        sequence.known_limit -= 1
        sequence.unreported += sequence.force()
        sequence.known_limit += 1
        sequence.arrival, sequence.arrived_at = self._arrivals, self._prefilled
        self._arrivals += 1
        self._waiting.append(sequence)

    def _plan_decodes(self, builder: StepBuilder) -> None:
        """The missing tokens of the running sequences that draw: one, or those that their guides
        forced too."""
        position = 0
        token_cost = (
            self._prefill_budget.token_cost(len(self._running)) if self._may_speculate() else 1.0
        )
        while position < len(self._running) and builder.budget > 0:
            sequence = self._running[position]
            missing = sequence.missing
            samples = sequence.decoding and not sequence.is_finishing
            if samples and self._grow(sequence, builder):
                length = min(missing, builder.budget)
                draft_tokens: tuple[int, ...] = ()
                if token_cost < 1.0 and length == missing:
                    draft_tokens = propose_draft_tokens(
                        sequence, builder, self._cache, len(self._running), token_cost
                    )
                builder.add_chunk(sequence, length, draft_tokens)
            position += 1

    def _may_speculate(self) -> bool:
        """Guesses and scores share the logits of a step: the scores go first."""
        if not self._speculates:
            return False
        next_one = self._waiting[0].unscored if self._waiting else 0
        return not next_one and not any(sequence.unscored for sequence in self._running)

    def _plan_prefills(self, builder: StepBuilder) -> None:
        """Chunks of the prompts that are not computed yet, running or waiting."""
        if builder.prefill_budget <= 0:
            return
        before = builder.prefill_budget
        shares = PrefillShares(before, self._budget, builder.score_room)
        passing = self._share_in_order(shares, builder)
        for sequence, missing in sorted(passing, key=lambda pair: due(*pair)):
            if shares.may_take(sequence, missing) and self._has_row(sequence, builder):
                shares.take(sequence)
        for sequence, most in shares.in_order():
            builder.add_prefill(sequence, most)
        self._prefilled += before - builder.prefill_budget

    def _share_in_order(
        self, shares: PrefillShares, builder: StepBuilder
    ) -> list[tuple[Sequence, int]]:
        """Grant tokens in order of arrival, to running prompts and to waiting ones that get a row.
        Returns the prompts that may take tokens of older ones, each with the tokens it misses."""
        by_arrival, cache = attrgetter("arrival"), self._cache
        prompts = [one for one in self._running if not (one.decoding or one.is_finishing)]
        running = [one for one in prompts if cache.has_arrived(one)]
        waiting = list(islice(self._waiting, self._max_num_seqs + MOST_PASSED))
        passing: list[tuple[Sequence, int]] = []
        passed, is_blocked = 0, False
        for sequence in merge(running, waiting, key=by_arrival):
            if sequence.row >= 0:
                shares.grant(sequence)
                continue
            if is_blocked or passed == MOST_PASSED or not self._may_admit():
                continue
            if cache.awaits_prefix(sequence) or (sequence.unscored and not shares.score_room):
                passed += 1
                continue
            found = cache.find_prefix(sequence)
            if shares.room <= 0:
                missing = cache.count_missing(sequence, found)
                if shares.may_take(sequence, missing):
                    passing.append((sequence, missing))
                passed += 1
            elif not self._try_admit(sequence, found, builder):
                is_blocked = True
            elif cache.has_arrived(sequence):
                shares.grant(sequence)
        return shares.held_up() + passing

    def _has_row(self, sequence: Sequence, builder: StepBuilder) -> bool:
        """Whether a sequence can compute in this step, after an admission if it waits."""
        cache = self._cache
        if sequence.row >= 0:
            return cache.has_arrived(sequence)
        found = cache.find_prefix(sequence)
        return self._try_admit(sequence, found, builder) and cache.has_arrived(sequence)

    def _try_admit(self, sequence: Sequence, found: list[int], builder: StepBuilder) -> bool:
        """A row, and blocks for all known tokens, for a waiting sequence.

        Each running sequence may soon need a block more: as many stay in reserve, or the newcomer
        would be preempted at once. One that passes the oldest waiting sequence also leaves a row
        and the blocks that the oldest one needs.
        """
        oldest, cache = self._waiting[0], self._cache
        reserve = len(self._running)
        spare = cache.pool.num_free - reserve
        if sequence is not oldest:
            reserve += cache.count_needed(oldest)
        if len(self._free_rows) < (1 if sequence is oldest else 2):
            return False
        if not cache.try_admit(sequence, found, reserve):
            if sequence is oldest:
                self._stalled = (sequence.id, spare)
            return False
        if sequence is oldest:
            self._stalled = ("", 0)
        self._admit(sequence, builder)
        return True

    def _admit(self, sequence: Sequence, builder: StepBuilder) -> None:
        """Let a waiting sequence that has its blocks run."""
        self._waiting.remove(sequence)
        insort(self._running, sequence, key=attrgetter("arrival"))
        sequence.row = self._free_rows.pop()
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
        builder.admissions.append(sequence.as_admit())
        builder.blocks.append(AppendBlocks(sequence.row, tuple(sequence.blocks)))

    def _plan_whole_contexts(self, builder: StepBuilder) -> None:
        """Without a cache between steps, a sequence computes its whole context in a step or
        nothing, in order of arrival."""
        position = 0
        while position < len(self._running) and builder.prefill_budget > 0:
            sequence = self._running[position]
            if len(sequence.tokens) > builder.prefill_budget:
                break
            if self._grow(sequence, builder):
                builder.add_whole_context(sequence)
            position += 1
        while self._waiting and self._may_admit():
            sequence = self._waiting[0]
            if len(sequence.tokens) > builder.prefill_budget:
                return
            if sequence.unscored and not builder.score_room:
                return
            if not self._try_admit(sequence, [], builder):
                return
            builder.add_whole_context(sequence)

    def _grow(self, sequence: Sequence, builder: StepBuilder) -> bool:
        """Blocks for all known tokens of a running sequence, taken from newer ones when none is
        free. False: it was itself the newest and is waiting again."""
        cache = self._cache
        new: list[int] = []
        while len(sequence.blocks) * cache.block_size < sequence.known:
            while cache.pool.num_free == 0:
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return False
            new.append(cache.extend(sequence))
        if new:
            builder.blocks.append(AppendBlocks(sequence.row, tuple(new)))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._free_sequence(sequence)
        insort(self._waiting, sequence, key=attrgetter("arrival"))
        self._preemptions += 1

    def _free_sequence(self, sequence: Sequence) -> None:
        """Take row and blocks from a sequence; the caller takes it out of `running`."""
        self._cache.free(sequence)
        self._releases.append(sequence.row)
        self._free_rows.append(sequence.row)
        sequence.row = -1
        sequence.decoding = False
        sequence.unsent = 0
