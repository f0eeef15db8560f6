"""A runtime without a model: the cache holds digests of prefixes, from which tokens are computed.

The digest of position i is a hash of the digest of position i - 1, read back from the cache, and
of token i. So a block that was lost, shared by mistake or overwritten changes every later token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import pairwise

from fake_drafts import FakeDrafter
from fake_states import FakeStates

from penstock.dialog import Sampling
from penstock.scheduler import (
    MAX_DRAFT_TOKENS,
    Chunk,
    CpuKvCacheIndex,
    Draft,
    MediaRun,
    MediaSpan,
    NewSequence,
    SampledToken,
    Scheduler,
    Scored,
    StepPlan,
    StepResult,
)
from penstock.scheduler.sequence import Sequence as Tenant

VOCAB = 50
GENERATED = b"generated"
"""Part of the digest of a generated token in a runtime that tells prompts apart."""


def digest(before: bytes, token: int, embedding: bytes = b"") -> bytes:
    """Return the digest of a position. `embedding`: the encoded media at the position."""
    return blake2b(before + token.to_bytes(4, "little") + embedding, digest_size=8).digest()


def embeddings(spans: Iterable[MediaSpan]) -> dict[int, bytes]:
    """Return the embedding of each token of `spans`, by its position."""
    return {
        span.start + row: span.digest + row.to_bytes(4, "little")
        for span in spans
        for row in range(span.length)
    }


def token_of(state: bytes, vocab: int = VOCAB) -> int:
    return int.from_bytes(state, "little") % vocab


def logprob_of(state: bytes, token: int) -> float:
    """Return the log-probability of the token after a state."""
    return -(int.from_bytes(digest(state, token), "little") % 1000) / 100


def scores_alone(prompt: Sequence[int], media: Sequence[MediaSpan] = ()) -> list[tuple[int, float]]:
    """Return the tokens of a prompt after the first with their log-probabilities."""
    scores, state, rows = [], b"", embeddings(media)
    for position, (token, following) in enumerate(pairwise(prompt)):
        state = digest(state, token, rows.get(position, b""))
        scores.append((following, logprob_of(state, following)))
    return scores


class ScriptedGuide:
    """A guide with fixed rules for the tokens that are forced, end the answer or are forbidden.
    `opening` is forced before the first sampled token.

    A forced token is the only one that may be sampled, if it is not forced before.
    """

    idle = False

    def __init__(self, opening: tuple[int, ...] = ()) -> None:
        self._forced = opening
        self.ended = False
        self.error: str | None = None

    def may_end(self, token_id: int) -> bool:
        return True

    def accept(self, token_id: int) -> bool:
        assert not self.ended and self.error is None
        if self._forced:
            assert token_id == self._forced[0]
            self._forced = self._forced[1:]
            return True
        if token_id % 16 == 7:
            self.error = "7, 23 and 39 are not allowed"
            return False
        self.ended = token_id % 12 == 5
        if token_id % 3 == 0 and not self.ended:
            self._forced = tuple((token_id + step) % VOCAB for step in range(1, token_id % 8))
        return True

    @property
    def only(self) -> int | None:
        """The only token that may be sampled next; None if there are others."""
        return self._forced[0] if self._forced else None

    def force(self, room: int, stops: frozenset[int] = frozenset()) -> tuple[int, ...]:
        ends = [index for index, token in enumerate(self._forced) if token in stops]
        room = min([room, *ends])
        forced, self._forced = self._forced[:room], self._forced[room:]
        return forced

    def follow(self, draft: Sequence[int]) -> int:
        if self._forced:
            return 0
        for index, token in enumerate(draft):
            probe = ScriptedGuide()
            if not probe.accept(token) or probe.ended or probe.force(1):
                return index
        return len(draft)


def answer_alone(
    prompt: Sequence[int],
    max_tokens: int,
    stops: frozenset[int],
    guide: ScriptedGuide | None = None,
    vocab: int = VOCAB,
    media: Sequence[MediaSpan] = (),
    kind: bytes = b"",
) -> list[int]:
    """Return the answer to a request, computed without a scheduler. `kind`: part of the digest of
    generated tokens."""
    state, rows = b"", embeddings(media)
    for position, token in enumerate(prompt):
        state = digest(state, token, rows.get(position, b""))
    answer: list[int] = []
    if guide is not None and max_tokens:
        answer += guide.force(max_tokens - 1, stops)
        for token in answer:
            state = digest(state, token, kind)
    while len(answer) < max_tokens:
        token = token_of(state, vocab)
        if guide is not None and guide.only is not None:
            token = guide.only
        if token in stops or (guide is not None and not guide.accept(token)):
            break
        new = [token]
        if guide is not None and not guide.ended:
            new += guide.force(max_tokens - len(answer) - 1, stops)
        answer += new
        if guide is not None and guide.ended:
            break
        for token in new:
            state = digest(state, token, kind)
    return answer


@dataclass
class Row:
    tokens: list[int]
    prompt_tokens: int
    is_scored: bool
    media: tuple[MediaRun, ...] = ()
    blocks: list[int] = field(default_factory=list)


class FakeRuntime:
    """Executes plans over a cache of digests, and checks every rule of `StepPlan`."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_batched_tokens: int,
        max_logits: int,
        *,
        forgets: bool = False,
        vocab: int = VOCAB,
        states: FakeStates | None = None,
        drafter: FakeDrafter | None = None,
        tells_prompts_apart: bool = False,
    ) -> None:
        self.kind = GENERATED if tells_prompts_apart else b""
        self.drafter = drafter
        self.states = states
        self.cache: list[list[bytes | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.block_size = block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_logits = max_logits
        self.forgets = forgets
        self.vocab = vocab
        self.rows: dict[int, Row] = {}
        self.fails: Callable[[int], bool] = lambda row: False
        self.max_step_tokens = 0
        self.drafted = 0
        self.next_token: Callable[[int], int] | None = None
        self.sequence_of: Callable[[int], Tenant | None] = lambda row: None
        self.host: dict[int, list[bytes | None]] = {}
        self.pending_copies: list[tuple[int, Callable[[], None]]] = []
        self.copies_wait = False

    def copy(self, count: int) -> None:
        """Complete `count` of the pending saves and restores."""
        for _, make in self.pending_copies[:count]:
            make()
        del self.pending_copies[:count]

    def _save(self, content: list[bytes | None], place: int) -> None:
        assert None not in content, "a block is saved that is not computed"
        self.host[place] = content

    def _bring(self, place: int, block: int) -> None:
        self.cache[block] = list(self.host[place])

    def _launch_copies(self, plan: StepPlan) -> None:
        """Queue the copies; they are made by `copy`, or when a step awaits them."""
        for one in plan.saves:
            content = list(self.cache[one.block])
            self.pending_copies.append((plan.step, partial(self._save, content, one.cpu_block)))
        for one in plan.restores:
            self.cache[one.block] = [None] * self.block_size
            self.pending_copies.append((plan.step, partial(self._bring, one.cpu_block, one.block)))
        awaited = sum(step <= plan.awaits for step, _ in self.pending_copies)
        self.copy(awaited if self.copies_wait else len(self.pending_copies))

    def execute(self, plan: StepPlan) -> StepResult:
        self._launch_copies(plan)
        if self.states is not None:
            self.states.begin(plan)
        for row in plan.releases:
            del self.rows[row]
        for admit in plan.admissions:
            assert admit.row not in self.rows, "a row has two tenants"
            is_scored = admit.prompt_logprobs is not None
            tokens = list(admit.token_ids)
            self.rows[admit.row] = Row(tokens, admit.prompt_tokens, is_scored, admit.media)
        for append in plan.blocks:
            self.rows[append.row].blocks.extend(append.blocks)
        for forced in plan.forced:
            assert forced.token_ids and any(chunk.row == forced.row for chunk in plan.chunks)
            self.rows[forced.row].tokens.extend(forced.token_ids)
        if self.forgets:
            self.cache = [[None] * self.block_size for _ in self.cache]
        assert plan.chunks
        assert plan.num_tokens <= self.max_num_batched_tokens
        assert len({chunk.row for chunk in plan.chunks}) == len(plan.chunks)
        self.max_step_tokens = max(self.max_step_tokens, plan.num_tokens)
        written: dict[tuple[int, int], bytes] = {}
        states = [self._compute(chunk, written) for chunk in plan.chunks]
        for (block, offset), state in written.items():
            self.cache[block][offset] = state
        sampled, scored, drafts, num_logits = [], [], [], 0
        for chunk, after in zip(plan.chunks, states, strict=True):
            row = self.rows[chunk.row]
            complete = chunk.start + chunk.length == len(row.tokens)
            assert complete or not chunk.samples
            assert chunk.samples or not chunk.draft_tokens
            num_logits += chunk.num_scores + chunk.samples + len(chunk.draft_tokens)
            assert row.is_scored or not chunk.num_scores
            for position in range(chunk.score_from, chunk.score_from + chunk.num_scores):
                token, state = row.tokens[position + 1], after[position - chunk.start]
                assert position >= chunk.start
                scored.append(Scored(chunk.row, token, logprob_of(state, token)))
            self.drafted += len(chunk.draft_tokens)
            for place, state in enumerate(after[chunk.length - 1 :] if chunk.samples else []):
                only = self._allowed(chunk.row)
                drawn = self._draw(state, row.tokens[-1])
                row.tokens.append(drawn if only is None else only)
                sampled.append(
                    SampledToken(chunk.row, row.tokens[-1], failed=self.fails(chunk.row))
                )
                if chunk.draft_tokens[place : place + 1] != (row.tokens[-1],):
                    break
            if chunk.samples and chunk.num_drafts and self.drafter is not None:
                drafts.append(self._draft(self.drafter, chunk, state))
            assert self.drafter is not None or not chunk.num_drafts
        assert num_logits <= self.max_logits
        last_restored = self.pending_copies[0][0] - 1 if self.pending_copies else plan.step
        draft_s = self.drafter.token_s * len(drafts) if self.drafter else 0.0
        return StepResult(
            plan.step, tuple(sampled), tuple(scored), last_restored, tuple(drafts), draft_s
        )

    def _draft(self, drafter: FakeDrafter, chunk: Chunk, state: bytes) -> Draft:
        """Draft after the last token of a row, which was sampled in `state`."""
        row = self.rows[chunk.row]

        def right(count: int) -> list[int]:
            tokens, after = [row.tokens[-1]], state
            for _ in range(count):
                after = digest(after, tokens[-1], self.kind)
                tokens.append(self._draw(after, tokens[-1]))
            return tokens[1:]

        places = len(row.tokens) + chunk.num_drafts - 1
        assert places <= len(row.blocks) * self.block_size, "no blocks for the drafts"
        return drafter.propose(chunk, len(row.tokens), right)

    def _allowed(self, row: int) -> int | None:
        """Return the only token that the mask of a row allows, None if there is no mask. The guide
        lacks the tokens of the step in flight."""
        sequence = self.sequence_of(row)
        if sequence is None or sequence.guide is None:
            return None
        guide = copy(sequence.guide)
        for token in self.rows[row].tokens[len(sequence.tokens) :]:
            if token in sequence.stop_token_ids or not guide.accept(token) or guide.ended:
                return None
        return guide.only

    def _draw(self, state: bytes, before: int) -> int:
        return token_of(state, self.vocab) if self.next_token is None else self.next_token(before)

    def _compute(self, chunk: Chunk, written: dict[tuple[int, int], bytes]) -> list[bytes]:
        """Compute a chunk, which reads the cache as it was before the step."""
        row = self.rows[chunk.row]
        tokens = [*row.tokens[: chunk.start + chunk.length], *chunk.draft_tokens]
        if self.states is not None:
            self.states.compute(chunk, tokens)
        after = []
        assert chunk.length > 0
        end = chunk.start + chunk.length
        runs = [] if self.forgets else row.media
        assert not any(run.whole and run.start < end < run.start + run.length for run in runs)
        rows = embeddings(MediaSpan(run.start, run.length, run.digest) for run in row.media)
        state = b""
        if chunk.start:
            block, offset = divmod(chunk.start - 1, self.block_size)
            before = self.cache[row.blocks[block]][offset]
            assert before is not None, "reads a place that nothing was written to"
            state = before
        for position in range(chunk.start, len(tokens)):
            block, offset = divmod(position, self.block_size)
            kind = self.kind if position >= row.prompt_tokens else b""
            state = digest(state, tokens[position], rows.get(position, kind))
            after.append(state)
            place = (row.blocks[block], offset)
            assert place not in written, "two chunks write to one place"
            written[place] = state
        return after


@dataclass
class Harness:
    """A scheduler and a fake runtime of the same sizes, and the answers so far."""

    num_blocks: int = 64
    block_size: int = 4
    max_model_len: int = 128
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 32
    max_queue: int = 1000
    prefix_caching: bool = True
    no_kv_cache: bool = False
    speculation: bool = False
    vocab: int = VOCAB
    cpu_blocks: int = 0
    max_saves_per_step: int = 100
    state_snapshots: int | None = None
    state_tile: int = 0
    max_drafts: int = 0
    wrong_every: int = 0
    tells_prompts_apart: bool = False

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_queue=self.max_queue,
            prefix_caching=self.prefix_caching,
            no_kv_cache=self.no_kv_cache,
            speculation=self.speculation,
            cpu_cache=CpuKvCacheIndex(self.cpu_blocks, self.max_saves_per_step),
            secret=b"test",
            state_snapshots=self.state_snapshots,
            drafter="draft_model" if self.max_drafts else None,
            max_drafts=self.max_drafts,
            tells_prompts_apart=self.tells_prompts_apart,
        )
        self.drafter = FakeDrafter(self.max_drafts, self.wrong_every)
        budget = max(self.max_num_batched_tokens, self.max_model_len if self.no_kv_cache else 0)
        self.runtime = FakeRuntime(
            self.num_blocks,
            self.block_size,
            budget,
            self.max_num_seqs + MAX_DRAFT_TOKENS,
            forgets=self.no_kv_cache,
            vocab=self.vocab,
            states=self._states(),
            drafter=self.drafter if self.max_drafts else None,
            tells_prompts_apart=self.tells_prompts_apart,
        )
        self.runtime.sequence_of = self._sequence_of
        self.answers: dict[str, list[int]] = {}
        self.finishes: dict[str, str] = {}
        self.cached: dict[str, int] = {}
        self.scores: dict[str, list[tuple[int, float]]] = {}

    def _sequence_of(self, row: int) -> Tenant | None:
        """Return the sequence of a row, unless it has ended."""
        running = self.scheduler._queues.running
        return next((one for one in running if one.row == row and not one.aborted), None)

    def _states(self) -> FakeStates | None:
        if self.state_snapshots is None:
            return None
        tile = self.state_tile or self.block_size
        return FakeStates(self.state_snapshots, tile, MAX_DRAFT_TOKENS if self.speculation else 0)

    def submit(
        self,
        id: str,
        prompt: Sequence[int],
        max_tokens: int = 8,
        stops: frozenset[int] = frozenset(),
        salt: bytes = b"",
        guide: ScriptedGuide | None = None,
        held: bool = False,
        prompt_logprobs: int | None = None,
        group: str = "",
        media: tuple[MediaSpan, ...] = (),
    ) -> None:
        new = NewSequence(
            id,
            token_ids=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            seed=0,
            max_tokens=max_tokens,
            stop_token_ids=stops,
            cache_salt=salt,
            prompt_logprobs=prompt_logprobs,
            group=group,
            media=media,
            media_runs=tuple(
                MediaRun(span.start, span.length, span.digest, 0, span.whole) for span in media
            ),
        )
        if held:
            self.scheduler.enqueue_unready(new)
        else:
            self.scheduler.submit(new, guide)
        self.answers[id] = []
        self.scores[id] = []

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.commit(plan)
        return plan

    def execute(self, plan: StepPlan) -> StepResult:
        """Execute the plan that the scheduler returned last, and check the origin of its drafts."""
        builder = self.scheduler._in_flight
        if self.max_drafts and builder is not None:
            for sequence, chunk in zip(builder.sequences, builder.chunks, strict=True):
                speculator = sequence.speculator
                if chunk.draft_tokens and speculator and speculator.proposed != "ngram":
                    self.drafter.check(chunk)
        return self.runtime.execute(plan)

    def commit(self, plan: StepPlan, duration_s: float | None = None) -> None:
        self.take(self.execute(plan), duration_s)

    def take(self, result: StepResult, duration_s: float | None = None) -> None:
        """Commit the result of a step."""
        for progress in self.scheduler.commit(result, duration_s):
            assert progress.id not in self.finishes, "progress after the finish"
            if progress.token_id is not None:
                self.answers[progress.id].append(progress.token_id)
            if progress.scored:
                assert not self.answers[progress.id], "the prompt comes first"
                scored = [(one.token_id, one.logprob) for one in progress.scored]
                self.scores[progress.id] += scored
            if progress.cached_tokens is not None:
                assert progress.id not in self.cached, "cached_tokens twice"
                self.cached[progress.id] = progress.cached_tokens
            if progress.finish is not None:
                self.finishes[progress.id] = progress.finish

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if self.step() is None:
                return
        raise AssertionError("the scheduler does not come to an end")
