"""Arbitrary interleavings of submissions, aborts and steps lose or mix up no request."""

from __future__ import annotations

from collections import Counter

from fake_runtime import Harness, ScriptedGuide, answer_alone, scores_alone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from penstock.scheduler import MediaSpan, StepPlan, StepResult

STEMS = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9], [5, 5, 5, 5, 5, 5, 5, 5])


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.integers(1, 12),
        max_queue=st.integers(1, 8),
        prefix_caching=st.booleans(),
        no_kv_cache=st.sampled_from([False, False, False, True]),
        speculation=st.booleans(),
        vocab=st.sampled_from([50, 4, 3]),
        cpu_blocks=st.sampled_from([0, 2, 5, 30]),
        max_saves_per_step=st.sampled_from([1, 3, 100]),
        max_drafts=st.sampled_from([0, 1, 4, 15]),
        wrong_every=st.sampled_from([0, 1, 2, 7]),
        tells_prompts_apart=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, **options: object) -> None:
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=min(24, num_blocks * block_size),
            **options,  # type: ignore[arg-type]
        )
        self.harness.runtime.copies_wait = True
        self.expected: dict[str, list[int]] = {}
        self.expected_scores: dict[str, list[tuple[int, float]]] = {}
        self.aborted: set[str] = set()
        self.failed: set[str] = set()
        self.in_flight: list[tuple[StepPlan, StepResult]] = []
        self.count = 0
        self.unready: dict[str, ScriptedGuide] = {}
        self.groups: dict[str, str] = {}
        self.arrivals: list[str] = []

    @rule(
        stem=st.sampled_from(STEMS),
        cut=st.integers(1, 8),
        tail=st.lists(st.integers(0, 3), max_size=6),
        max_tokens=st.integers(0, 9),
        stops=st.frozensets(st.integers(0, 49), max_size=6),
        salt=st.sampled_from([b"", b"", b"other"]),
        opening=st.none() | st.lists(st.integers(0, 49), max_size=4),
        unready=st.booleans(),
        prompt_logprobs=st.none() | st.just(0),
        group=st.sampled_from(["", "", "a", "b"]),
        image=st.none() | st.tuples(st.integers(0, 7), st.integers(1, 8), st.sampled_from("AB")),
        whole=st.booleans(),
    )
    def submit(
        self,
        stem: list[int],
        cut: int,
        tail: list[int],
        max_tokens: int,
        stops: frozenset[int],
        salt: bytes,
        opening: list[int] | None,
        unready: bool,
        prompt_logprobs: int | None,
        group: str,
        image: tuple[int, int, str] | None,
        whole: bool,
    ) -> None:
        prompt, id = stem[:cut] + tail, f"r{self.count}"
        media: tuple[MediaSpan, ...] = ()
        if image is not None and image[0] < len(prompt):
            start, length, content = image
            length = min(length, len(prompt) - start)
            media = (MediaSpan(start, length, content.encode(), whole),)
        self.count += 1
        harness = self.harness
        gauges = harness.scheduler.gauges()
        free_rows = gauges.sequences_capacity - gauges.sequences_running
        left_over = gauges.sequences_waiting - free_rows
        over = self.aborted | harness.finishes.keys()
        joins = any(name == group != "" and id not in over for id, name in self.groups.items())
        try:
            unready &= opening is not None
            guides = [None if opening is None else ScriptedGuide(tuple(opening)) for _ in range(2)]
            guide = None if unready else guides[0]
            harness.submit(
                *(id, prompt, max_tokens, stops, salt, guide, unready, prompt_logprobs, group),
                media,
            )
        except ContextLengthExceeded:
            assert len(prompt) > harness.max_model_len - min(max_tokens, 1)
            return
        except InvalidRequest:
            assert media[0].whole and media[0].length > harness.runtime.max_num_batched_tokens
            return
        except Overloaded:
            assert left_over >= harness.max_queue and not joins
            return
        assert left_over < harness.max_queue or joins
        self.groups[id] = group
        room = harness.max_model_len - len(prompt)
        self.expected[id] = answer_alone(
            prompt,
            min(max_tokens, room),
            stops,
            guides[1],
            harness.vocab,
            media,
            harness.runtime.kind,
        )
        scored = prompt_logprobs is not None
        self.expected_scores[id] = scores_alone(prompt, media) if scored else []
        if unready and guides[0] is not None:
            self.unready[id] = guides[0]
        else:
            self.arrivals.append(id)

    @precondition(lambda self: self.unready)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.unready)))
        here = id not in self.aborted
        assert self.harness.scheduler.make_ready(id, self.unready.pop(id)) == here
        if here:
            self.arrivals.append(id)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.expected)))
        alive = id not in self.harness.finishes and id not in self.aborted
        assert self.harness.scheduler.abort(id) == alive
        if alive:
            self.aborted.add(id)

    @precondition(lambda self: self.harness.runtime.pending_copies)
    @rule(count=st.integers(1, 5))
    def copies_progress(self, count: int) -> None:
        self.harness.runtime.copy(count)

    @precondition(lambda self: not self.in_flight)
    @rule()
    def plan(self) -> None:
        plan = self.harness.scheduler.plan()
        assert (plan is None) == (not self.harness.scheduler.has_work)
        self.execute(plan)

    @precondition(lambda self: len(self.in_flight) == 1)
    @rule()
    def plan_ahead(self) -> None:
        self.execute(self.harness.scheduler.plan_ahead())

    @precondition(lambda self: self.in_flight)
    @rule(duration_ms=st.one_of(st.none(), st.integers(1, 50)))
    def commit(self, duration_ms: int | None) -> None:
        _, result = self.in_flight.pop(0)
        self.harness.take(result, None if duration_ms is None else duration_ms / 1000)

    def execute(self, plan: StepPlan | None) -> None:
        """Execute a step when it is planned; it is committed later."""
        if plan is not None:
            self.in_flight.append((plan, self.harness.execute(plan)))

    def finish_step(self) -> None:
        """Commit a step with a time in which a token costs a fifth of the fixed part."""
        if self.in_flight:
            self.commit(5 + self.in_flight[0][0].num_tokens)

    @rule(steps=st.integers(1, 6), ahead=st.booleans())
    def several_steps(self, steps: int, ahead: bool) -> None:
        for _ in range(steps):
            if not self.in_flight:
                self.plan()
            if ahead and len(self.in_flight) == 1:
                self.plan_ahead()
            self.finish_step()

    @invariant()
    def each_reference_to_a_block_is_counted(self) -> None:
        scheduler = self.harness.scheduler
        pool = scheduler._cache.pool
        held = Counter(block for s in scheduler._queues.running for block in s.blocks)
        assert all(pool.holders(block) == held[block] for block in range(pool.num_blocks))
        free = pool.free_blocks()
        assert len(free) == len(set(free)) == pool.num_free
        assert set(free).isdisjoint(held)
        assert len(free) + len(held) == pool.num_blocks

    @invariant()
    def each_cpu_block_is_free_or_holds_one_prefix(self) -> None:
        cpu_cache = self.harness.scheduler._cache.cpu_cache
        places = [*cpu_cache._block_of.values(), *cpu_cache._free]
        assert sorted(places) == list(range(cpu_cache.num_blocks))

    @invariant()
    def copies_of_a_prefix_are_equal_on_device_and_cpu(self) -> None:
        """Checked only without pending copies and steps in flight."""
        harness = self.harness
        cache, runtime = harness.scheduler._cache, harness.runtime
        if runtime.pending_copies or self.in_flight:
            return
        for key, place in cache.cpu_cache._block_of.items():
            block = cache.index.find(key)
            if block is not None:
                assert runtime.cache[block] == runtime.host[place]

    @invariant()
    def a_block_that_is_shared_is_published(self) -> None:
        scheduler = self.harness.scheduler
        pool, index = scheduler._cache.pool, scheduler._cache.index
        assert all(
            index.holds(block) for block in range(pool.num_blocks) if pool.holders(block) > 1
        )

    @invariant()
    def each_row_is_free_or_has_one_sequence(self) -> None:
        scheduler = self.harness.scheduler
        rows = [s.row for s in scheduler._queues.running] + scheduler._queues.free_rows
        assert sorted(rows) == list(range(self.harness.max_num_seqs))
        assert all(s.row == -1 and not s.blocks for s in scheduler._queues.waiting)

    @invariant()
    def running_and_waiting_requests_are_each_in_order_of_arrival(self) -> None:
        scheduler = self.harness.scheduler
        for line in (scheduler._queues.running, scheduler._queues.waiting):
            places = [self.arrivals.index(s.id) for s in line]
            assert places == sorted(places)

    @invariant()
    def answers_equal_those_of_a_request_alone(self) -> None:
        harness = self.harness
        for id, expected in self.expected.items():
            answer = harness.answers[id]
            assert answer == expected[: len(answer)]
            if id in harness.finishes:
                assert answer == expected

    @invariant()
    def prompt_scores_equal_those_of_a_request_alone(self) -> None:
        harness = self.harness
        for id, expected in self.expected_scores.items():
            scores = harness.scores[id]
            assert scores == expected[: len(scores)]
            if id in harness.finishes or harness.answers[id]:
                assert scores == expected

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        while self.in_flight:
            self.commit(None)
        for id, guide in self.unready.items():
            self.harness.scheduler.make_ready(id, guide)
        self.harness.run()
        unfinished = set(self.expected) - set(self.harness.finishes)
        assert unfinished <= self.aborted
        gauges = self.harness.scheduler.gauges()
        assert gauges.kv_cache_blocks_used == 0
        assert gauges.sequences_running == gauges.sequences_waiting == 0
        assert not self.harness.scheduler._cache._promised
        assert not self.harness.scheduler._sequences


SchedulerMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestSchedulerMachine = SchedulerMachine.TestCase
