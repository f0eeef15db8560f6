"""The scheduler's choice whether to draft, under step times with heavy tails: a simulated machine
takes exact times, times lognormal noise, and stalls for single steps and for whole stretches."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from fake_drafts import FakeDrafter
from fake_runtime import Harness

from penstock.scheduler import Chunk, Draft

FIXED_S = 0.010


@dataclass
class Machine:
    """The durations of steps. `token_s`: the exact time of each token beyond `FIXED_S`."""

    token_s: float
    random: random.Random
    stalled: int = 0

    def seconds(self, num_tokens: int) -> float:
        exact = FIXED_S + self.token_s * num_tokens
        if self.stalled == 0 and self.random.random() < 0.01:
            self.stalled = 12
        factor = self.random.lognormvariate(0.0, 0.15)
        if self.stalled:
            self.stalled -= 1
            factor *= 3.0
        if self.random.random() < 0.05:
            factor *= self.random.uniform(3.0, 40.0)
        return exact * factor


@dataclass
class UncertainDrafter(FakeDrafter):
    """A drafter each of whose tokens is wrong with the probability `wrong`."""

    wrong: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def propose(self, chunk: Chunk, known: int, right: Callable[[int], list[int]]) -> Draft:
        tokens = right(chunk.num_drafts)
        tokens = [token + (self.random.random() < self.wrong) for token in tokens]
        self.offered[chunk.row] = known, tuple(tokens)
        return Draft(chunk.row, tuple(tokens))


@dataclass
class Simulation:
    """One long greedy answer. `drafted`: for each step, how many draft tokens it verified."""

    token_s: float
    wrong: float
    seed: int
    draft_token_s: float = 0.0001
    drafted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.harness = Harness(
            speculation=True,
            max_drafts=4,
            max_model_len=40_000,
            num_blocks=10_010,
        )
        self.drafter = UncertainDrafter(
            4, token_s=self.draft_token_s, wrong=self.wrong, random=random.Random(self.seed + 100)
        )
        self.harness.drafter = self.harness.runtime.drafter = self.drafter
        self.machine = Machine(self.token_s, random.Random(self.seed))
        self.harness.submit("a", [*range(20), 3], 30_000)

    def run(self, steps: int) -> list[int]:
        """Return how many draft tokens each of the next `steps` steps verified."""
        drafted = []
        for _ in range(steps):
            plan = self.harness.scheduler.plan()
            assert plan is not None
            drafted.append(sum(len(chunk.draft_tokens) for chunk in plan.chunks))
            asks = any(chunk.num_drafts for chunk in plan.chunks if chunk.samples)
            own_s = self.machine.seconds(plan.num_tokens)
            self.harness.commit(plan, own_s + asks * self.harness.drafter.token_s)
        return drafted


def share(drafted: list[int]) -> float:
    """Return the share of the steps that verified draft tokens."""
    return sum(map(bool, drafted)) / len(drafted)


# Half of the draft tokens are accepted, and each costs 7/8 of a step: a draft of one token makes
# 1.5 tokens in 1.875 times the time, and so costs 20 %.
LOSES = {"token_s": 0.070, "wrong": 0.5}
# Nine of ten are accepted, and each costs a sixth of a step: four make 4.1 tokens in 1.67.
GAINS = {"token_s": 0.002, "wrong": 0.1}


@pytest.mark.parametrize("seed", range(4))
def test_drafts_that_cost_more_than_they_gain_are_turned_off_and_stay_off(seed: int) -> None:
    simulation = Simulation(**LOSES, seed=seed)
    simulation.run(200)
    assert share(simulation.run(4000)) < 0.05


@pytest.mark.parametrize("seed", range(4))
def test_drafts_that_gain_stay_on(seed: int) -> None:
    simulation = Simulation(**GAINS, seed=seed)
    simulation.run(200)
    assert share(simulation.run(4000)) > 0.85


@pytest.mark.parametrize("seed", range(4))
def test_drafts_follow_a_machine_that_changes(seed: int) -> None:
    """First drafts gain; then other programs take the cores, and each token costs 7/8 of a step;
    then the cores are free again."""
    simulation = Simulation(**GAINS, seed=seed)
    simulation.drafter.wrong = 0.5
    simulation.run(400)
    assert share(simulation.run(400)) > 0.85
    simulation.machine.token_s = 0.070
    simulation.run(400)
    assert share(simulation.run(1000)) < 0.10
    simulation.machine.token_s = 0.002
    simulation.run(800)
    assert share(simulation.run(1500)) > 0.85


@pytest.mark.parametrize("seed", range(4))
def test_the_time_of_the_drafter_counts(seed: int) -> None:
    """Draft tokens are verified almost for nothing, but the drafter needs a step's time for one."""
    simulation = Simulation(token_s=0.0005, wrong=0.5, seed=seed, draft_token_s=0.011)
    simulation.run(200)
    assert share(simulation.run(4000)) < 0.05
