"""10,000 random schedules of a model with recurrent layers lose or mix up no state.

`FakeStates` checks that each chunk starts with exactly the tokens before it, and the fake runtime
that each answer equals that of the request alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from fake_runtime import Harness, ScriptedGuide, answer_alone

from penstock.base.errors import ContextLengthExceeded
from penstock.scheduler import StepPlan, StepResult

SCHEDULES_PER_ENGINE = 50
ENGINES_PER_PART = 20
PARTS = 10
ACTIONS = 4
STEMS = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9], [5, 5, 5, 5, 5, 5, 5, 5])


@dataclass
class Request:
    """A request that has not been aborted."""

    prompt: list[int]
    max_tokens: int
    stops: frozenset[int]
    guided: bool


class Machine:
    """One engine of random sizes, which runs random schedules one after another."""

    def __init__(self, random: Random) -> None:
        self.random = random
        block_size = random.choice([1, 2, 4])
        speculates = random.random() < 0.5
        num_blocks = random.randint(12 // block_size, 20)
        self.harness = Harness(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=min(28, num_blocks * block_size),
            max_num_seqs=random.randint(1, 4),
            max_num_batched_tokens=random.randint(2, 14),
            prefix_caching=random.random() < 0.95,
            no_kv_cache=random.random() < 0.03,
            speculation=speculates,
            vocab=random.choice([2, 3] if speculates else [4, 50]),
            state_snapshots=random.choice([0, 1, 2, 3, 4, 6, 12]),
            state_tile=random.choice([1, block_size]),
        )
        for tokens in (1, 100):  # drafts pay from the start: a token costs little
            self.harness.scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
        self.requests: dict[str, Request] = {}
        self.turns: list[list[int]] = []
        self.in_flight: list[tuple[StepPlan, StepResult]] = []
        self.submitted = 0

    def run_schedule(self) -> None:
        """Run a few actions. Most schedules leave requests and steps in flight to the next one."""
        actions = (self.submit, self.submit, self.steps, self.steps, self.plan, self.abort)
        for _ in range(ACTIONS):
            self.random.choice(actions)()
        if self.random.random() < 0.05:
            self.drain()

    def submit(self) -> None:
        """Submit one request, or a group with the same prompt: a stem with a random tail, or the
        next turn of a conversation."""
        random = self.random
        tail = [random.randint(0, 3) for _ in range(random.randint(0, 6))]
        prompt = random.choice(STEMS)[: random.randint(1, 8)] + tail
        if self.turns and random.random() < 0.3:
            prompt = random.choice(self.turns)[:20] + tail[:2]
        request = Request(
            prompt,
            max_tokens=random.randint(0, 12),
            stops=frozenset(random.choices(range(50), k=3)),
            guided=random.random() < 0.1,
        )
        scored = 0 if random.random() < 0.05 else None
        group = f"group of {self.submitted}"
        for _ in range(random.choice([1, 1, 2, 3])):
            id = f"r{self.submitted}"
            guide = ScriptedGuide((3, 4)) if request.guided else None
            try:
                self.harness.submit(
                    *(id, prompt, request.max_tokens, request.stops, b"", guide, False),
                    prompt_logprobs=scored,
                    group=group,
                )
            except ContextLengthExceeded:
                return
            self.submitted += 1
            self.requests[id] = request

    def abort(self) -> None:
        running = [id for id in self.requests if id not in self.harness.finishes]
        if running:
            id = self.random.choice(running)
            assert self.harness.scheduler.abort(id)
            del self.requests[id]

    def plan(self) -> None:
        if not self.in_flight:
            self.execute(self.harness.scheduler.plan())
        elif len(self.in_flight) == 1:
            self.execute(self.harness.scheduler.plan_ahead())

    def steps(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.plan()
            if self.random.random() < 0.6:
                self.plan()
            self.commit()

    def execute(self, plan: StepPlan | None) -> None:
        """Execute a step when it is planned; it is committed later. A step planned ahead must not
        overwrite a snapshot that the step in flight uses, or read one that it saves."""
        if plan is None:
            return
        if self.in_flight:
            before = [chunk.state for chunk in self.in_flight[0][0].chunks]
            saved = {use.save for use in before} - {None}
            used = ({use.restore for use in before} | saved) - {None}
            assert used.isdisjoint(chunk.state.save for chunk in plan.chunks)
            assert saved.isdisjoint(chunk.state.restore for chunk in plan.chunks)
        self.in_flight.append((plan, self.harness.runtime.execute(plan)))

    def commit(self) -> None:
        if self.in_flight:
            plan, result = self.in_flight.pop(0)
            self.harness.take(result, (40 + plan.num_tokens) / 1000)

    def drain(self) -> None:
        """Complete all requests and check their answers. No snapshot stays in use."""
        harness = self.harness
        while self.in_flight:
            self.commit()
        harness.run()
        for id, request in self.requests.items():
            assert id in harness.finishes
            room = harness.max_model_len - len(request.prompt)
            guide = ScriptedGuide((3, 4)) if request.guided else None
            assert harness.answers[id] == answer_alone(
                request.prompt, min(request.max_tokens, room), request.stops, guide, harness.vocab
            )
            self.turns = [*self.turns[-5:], request.prompt + harness.answers[id]]
        for log in (self.requests, harness.answers, harness.finishes, harness.cached):
            log.clear()
        assert harness.scheduler.gauges().kv_cache_blocks_used == 0
        if (snapshots := harness.scheduler._snapshots) is not None:
            assert not snapshots._saving and not snapshots._promised and not any(snapshots._readers)
            published = list(snapshots._slot_of.values())
            assert sorted(published + snapshots._free) == list(range(snapshots.num_slots))
            assert set(snapshots._passing) <= set(published)
            assert len(snapshots._passing) <= snapshots.num_slots // 2


@pytest.mark.parametrize("part", range(PARTS))
def test_each_chunk_of_random_schedules_starts_with_the_state_of_its_prefix(part: int) -> None:
    seen: Counter[str] = Counter()
    for engine in range(ENGINES_PER_PART):
        machine = Machine(Random(part * ENGINES_PER_PART + engine))
        for _ in range(SCHEDULES_PER_ENGINE):
            machine.run_schedule()
        machine.drain()
        gauges = machine.harness.scheduler.gauges()
        seen["saves"] += gauges.state_snapshot_saves
        seen["restores"] += gauges.state_snapshot_restores
        seen["evictions"] += gauges.state_snapshot_evictions
        seen["preemptions"] += gauges.preemptions
        seen["accepted drafts"] += gauges.accepted_tokens
        seen["rejected drafts"] += gauges.draft_tokens - gauges.accepted_tokens
        seen["aborts"] += gauges.completed_abort
    assert min(seen.values()) > 20, seen
