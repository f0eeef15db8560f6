"""Arbitrary arrivals of long, medium and short prompts: short ones finish soon, none starves."""

from __future__ import annotations

from dataclasses import dataclass

from fake_runtime import Harness, answer_alone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.scheduler import StepPlan
from penstock.scheduler.prefill import CREDIT_STEPS, GIVEN_PARTS

LONGEST_STEPS = 8
MOST_PROMPTS = 40
SHORT_STEPS = 3


@dataclass
class Prompt:
    """A prompt of the test.

    `missing`: tokens not computed yet. `ahead`: tokens that it and all older prompts missed when it
    arrived; `num_ahead`: number of these prompts. `steps` and `shared`: the steps since then, and
    their prefill tokens. `fair`: tokens that it would have computed in the steps in which it was
    the oldest, had it given none away; `computed`: the tokens that it computed in them.
    """

    tokens: list[int]
    max_tokens: int
    ahead: int
    num_ahead: int
    is_short: bool
    missing: int
    steps: int = 0
    shared: int = 0
    fair: int = 0
    computed: int = 0


class PrefillMachine(RuleBasedStateMachine):
    """`crowd` "long": all prompts except the short ones are long, and each samples one token."""

    @initialize(tenth=st.sampled_from([1, 2, 5, 10]), crowd=st.sampled_from(["long", "mixed"]))
    def start(self, tenth: int, crowd: str) -> None:
        self.tenth, self.crowd = tenth, crowd
        self.budget = GIVEN_PARTS * tenth
        self.harness = Harness(
            num_blocks=MOST_PROMPTS * LONGEST_STEPS * self.budget,
            block_size=4,
            max_model_len=LONGEST_STEPS * self.budget + 40,
            max_num_seqs=MOST_PROMPTS + 1,
            max_num_batched_tokens=self.budget,
        )
        self.prompts: dict[str, Prompt] = {}  # in order of arrival
        self.rows: dict[int, str] = {}
        self.count = 0

    def unfinished(self) -> dict[str, Prompt]:
        return {id: one for id, one in self.prompts.items() if one.missing}

    def arrive(self, length: int, max_tokens: int, *, is_short: bool) -> None:
        line = self.unfinished()
        if len(line) == MOST_PROMPTS:
            return
        tokens = [100 + self.count, *[1] * (length - 1)]  # no shared prefixes
        id = f"r{self.count}"
        self.count += 1
        self.harness.submit(id, tokens, max_tokens)
        self.prompts[id] = Prompt(
            tokens,
            max_tokens,
            ahead=sum(one.missing for one in line.values()) + length,
            num_ahead=len(line) + 1,
            is_short=is_short,
            missing=length,
        )

    @rule(steps=st.integers(3, LONGEST_STEPS), less=st.integers(0, 9))
    def long_prompt(self, steps: int, less: int) -> None:
        self.arrive(steps * self.budget - less, 1, is_short=False)

    @rule(share=st.floats(0, 1))
    def short_prompt(self, share: float) -> None:
        """Short prompts, which together miss at most a tenth of a step."""
        line = self.unfinished().values()
        room = self.tenth - sum(one.missing for one in line if one.is_short)
        if room > 0:
            self.arrive(max(1, round(share * room)), 1, is_short=True)

    @precondition(lambda self: self.crowd == "mixed")
    @rule(length=st.integers(1, 300), max_tokens=st.sampled_from([1, 1, 1, 2, 9]))
    def any_prompt(self, length: int, max_tokens: int) -> None:
        self.arrive(min(length, LONGEST_STEPS * self.budget), max_tokens, is_short=False)

    @precondition(lambda self: self.harness.scheduler.has_work)
    @rule(count=st.integers(1, 4))
    def steps(self, count: int) -> None:
        for _ in range(count):
            plan = self.harness.scheduler.plan()
            if plan is None:
                return
            self.harness.commit(plan)  # checks the budget and the answers
            self.check(plan)

    def check(self, plan: StepPlan) -> None:
        for admit in plan.admissions:
            self.rows[admit.row] = f"r{admit.token_ids[0] - 100}"
        line = self.unfinished()
        taken = dict.fromkeys(line, 0)
        for chunk in plan.chunks:
            id = self.rows[chunk.row]
            if id in line:
                taken[id] = chunk.length
        shared = sum(taken.values())
        everything = sum(one.missing for one in line.values())
        if plan.num_tokens == shared:  # no decodes: the whole step is prefill
            assert shared == min(self.budget, everything)
        for place, (id, one) in enumerate(line.items()):
            if place == 0:
                one.fair += min(one.missing, shared)
                one.computed += taken[id]
            one.missing -= taken[id]
            one.shared += shared
            one.steps += 1
            self.check_prompt(one)

    def check_prompt(self, one: Prompt) -> None:
        """Check the bounds that hold for every prompt after every step."""
        credit = CREDIT_STEPS * self.budget
        given = GIVEN_PARTS * (one.fair - one.computed)
        assert given <= one.fair + (credit if one.num_ahead > 1 else 0), (
            "it gives more than a tenth"
        )
        if not one.missing:
            return
        reached = (GIVEN_PARTS - 1) * one.shared
        assert reached < GIVEN_PARTS * one.ahead + credit * one.num_ahead, "it starves"
        if self.crowd == "long" and one.is_short:
            assert one.steps < SHORT_STEPS, "a short prompt has its first token in three steps"

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        while self.harness.scheduler.has_work:
            self.steps(1)
        for id, one in self.prompts.items():
            assert self.harness.answers[id] == answer_alone(one.tokens, one.max_tokens, frozenset())


PrefillMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPrefillMachine = PrefillMachine.TestCase
