"""Chooses the chunks of a step: first decodes, then prefill chunks, within one token budget.

Decodes and prefill chunks share a step (continuous batching with chunked prefill). Running and
waiting prompts share the prefill tokens (`prefill.py`). If no KV block is free, the newest running
sequence is preempted: it gives up its blocks, keeps its tokens, and waits again.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice
from operator import attrgetter

from penstock.scheduler.draft_tokens import DraftPlanner
from penstock.scheduler.drafting import Drafting
from penstock.scheduler.ngram_speculation import MAX_DRAFT_TOKENS
from penstock.scheduler.prefill import PrefillShares, due
from penstock.scheduler.prefill_budget import PrefillBudget
from penstock.scheduler.queues import MAX_PASSED, SequenceQueues
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.state_saves import StateSaves
from penstock.scheduler.step_builder import StepBuilder
from penstock.scheduler.step_costs import StepCosts


class StepPlanner:
    """Builds steps of up to `budget` tokens from the sequences in `queues`.

    `keeps_cache`: False if each step recomputes the whole context of each of its sequences.
    `speculates`: propose draft tokens if they pay.
    `drafting`: the drafter of the runtime; None without one.
    """

    def __init__(
        self,
        queues: SequenceQueues,
        budget: int,
        *,
        keeps_cache: bool,
        speculates: bool,
        drafting: Drafting | None = None,
    ) -> None:
        self._queues = queues
        snapshots = queues.cache.snapshots
        self._saves = None if snapshots is None else StateSaves(queues.cache, snapshots)
        self._budget = budget
        self._keeps_cache = keeps_cache
        self._speculates = speculates
        self._drafting = drafting
        self.prefill_budget = PrefillBudget(min_share=queues.cache.block_size)
        self.step_costs = StepCosts()
        self.prefilled = 0
        """Prefill tokens planned so far."""

    def build(self) -> StepBuilder | None:
        """Return the next step. If there is nothing to compute, return None and change nothing."""
        queues = self._queues
        drafts = self._draft_planner()
        builder = StepBuilder(self._budget, self._budget, self._saves, drafts)
        if self._keeps_cache:
            _, reserved = self._next_whole_span()
            builder.budget -= reserved
            self._plan_decodes(builder, drafts)
            builder.budget += reserved
        decodes = len(builder.chunks)
        if decodes > 0:
            prompts = len(queues.continuing) - decodes + len(queues.waiting)
            builder.limit_prefill(self.prefill_budget.prefill_tokens(decodes, prompts))
        num_sampled = min(queues.max_num_seqs, len(queues.running) + len(queues.waiting))
        builder.score_room = (
            queues.max_num_seqs + MAX_DRAFT_TOKENS - builder.num_draft_tokens - num_sampled
        )
        if self._keeps_cache:
            self._plan_prefills(builder)
        else:
            self._plan_whole_contexts(builder)
        if not builder.chunks and (continuing := queues.continuing):
            # All sequences wait for restores from the CPU KV cache: include the oldest sequence.
            builder.add_prefill(continuing[0], builder.prefill_budget)
        return builder if builder.chunks else None

    def _plan_decodes(self, builder: StepBuilder, drafts: DraftPlanner | None) -> None:
        """Add the missing tokens of each sequence that decodes: the last sampled token, the tokens
        forced after it, and draft tokens."""
        queues = self._queues
        position = 0
        while position < len(queues.running) and builder.budget > 0:
            sequence = queues.running[position]
            missing = sequence.missing
            samples = sequence.decoding and not sequence.is_finishing
            if samples and queues.grow(sequence, builder):
                length = min(missing, builder.budget)
                draft_tokens: tuple[int, ...] = ()
                if drafts is not None and length == missing:
                    draft_tokens = drafts.propose(sequence, builder)
                builder.add_chunk(sequence, length, draft_tokens)
            position += 1

    def _draft_planner(self) -> DraftPlanner | None:
        """Return the planner of the draft tokens of the next step, None if it has none."""
        cache, rows, fitted = self._queues.cache, len(self._queues.running), self.prefill_budget
        if not self._may_speculate() or self.step_costs.take_plain(rows):
            return None
        decodes = max(rows, 1)  # the first prompt makes the first row
        cost = self.step_costs.token_cost(decodes) or fitted.token_cost(decodes)
        token_cost = cost if rows else 1.0
        if self._drafting is None or cost >= 1.0:
            return DraftPlanner(cache, rows, token_cost)
        step_token_s = self.step_costs.step_token_s(decodes) or fitted.step_token_s(decodes)
        cost += self._drafting.token_s(decodes) / step_token_s
        return DraftPlanner(cache, rows, token_cost, self._drafting, cost)

    def _may_speculate(self) -> bool:
        """Return whether the step may have draft tokens. They share the logits rows of a step with
        prompt log-probabilities, which have priority."""
        if not self._speculates:
            return False
        queues = self._queues
        next_one = queues.waiting[0].unscored if queues.waiting else 0
        return not next_one and not any(sequence.unscored for sequence in queues.running)

    def _plan_prefills(self, builder: StepBuilder) -> None:
        """Add chunks of running and waiting prompts that are not computed yet."""
        if builder.prefill_budget <= 0:
            return
        before = builder.prefill_budget
        oldest, reserved = self._next_whole_span()
        if oldest is not None:
            builder.add_prefill(oldest, reserved)
        self._share_prefill(builder)
        self.prefilled += before - builder.prefill_budget

    def _next_whole_span(self) -> tuple[Sequence | None, int]:
        """Return the oldest running prompt and the number of its next tokens that one step must
        compute together, if these are a `whole` media span; (None, 0) if they are not. A step has
        room for them first, so that decodes and other prompts do not starve the prompt."""
        for sequence in self._queues.running:
            if self._is_prompt(sequence):
                tokens = sequence.divisible(1)
                return (sequence, tokens) if tokens > 1 else (None, 0)
        return None, 0

    def _is_prompt(self, sequence: Sequence) -> bool:
        """Return whether a step may compute prompt tokens of a running sequence."""
        is_prompt = not (sequence.decoding or sequence.is_finishing)
        return is_prompt and self._queues.cache.has_arrived(sequence)

    def _share_prefill(self, builder: StepBuilder) -> None:
        """Share the prefill budget among the prompts that have no chunk yet."""
        shares = PrefillShares(builder.prefill_budget, self._budget, builder.score_room)
        passing = self._share_in_order(shares, builder)
        for sequence, missing in sorted(passing, key=lambda pair: due(*pair)):
            if shares.may_take(sequence, missing) and self._queues.ensure_row(sequence, builder):
                shares.take(sequence)
        for sequence, most in shares.in_order():
            builder.add_prefill(sequence, most)

    def _share_in_order(
        self, shares: PrefillShares, builder: StepBuilder
    ) -> list[tuple[Sequence, int]]:
        """Grant prefill tokens in order of arrival to running prompts and to waiting prompts that
        get a row. Return the prompts that may take tokens from older prompts, each with the number
        of its missing tokens."""
        queues, cache = self._queues, self._queues.cache
        planned = set(builder.sequences)
        prompts = (one for one in queues.running if self._is_prompt(one))
        running = [one for one in prompts if one not in planned]
        waiting = list(islice(queues.waiting, queues.max_num_seqs + MAX_PASSED))
        passing: list[tuple[Sequence, int]] = []
        passed, is_blocked = 0, False
        for sequence in merge(running, waiting, key=attrgetter("arrival")):
            if sequence.row >= 0:
                shares.grant(sequence)
                continue
            if is_blocked or passed == MAX_PASSED or not queues.may_admit():
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
            elif not queues.try_admit(sequence, found, builder):
                is_blocked = True
            elif cache.has_arrived(sequence):
                shares.grant(sequence)
        return shares.unfinished() + passing

    def _plan_whole_contexts(self, builder: StepBuilder) -> None:
        """Add sequences in order of arrival, each with its whole context or not at all. Used if no
        KV cache is kept between steps."""
        queues = self._queues
        position = 0
        while position < len(queues.running) and builder.prefill_budget > 0:
            sequence = queues.running[position]
            if len(sequence.tokens) > builder.prefill_budget:
                break
            if queues.grow(sequence, builder):
                builder.add_whole_context(sequence)
            position += 1
        while queues.waiting and queues.may_admit():
            sequence = queues.waiting[0]
            if len(sequence.tokens) > builder.prefill_budget:
                return
            if sequence.unscored and not builder.score_room:
                return
            if not queues.try_admit(sequence, [], builder):
                return
            builder.add_whole_context(sequence)
