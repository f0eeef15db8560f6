"""A sequence in the scheduler: the request that creates it, its state, and its progress per
step."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from penstock.dialog import Sampling
from penstock.scheduler.guide import Guide
from penstock.scheduler.speculator import Speculator
from penstock.scheduler.types import NO_ADAPTER, Admit, Chunk, MediaRun, MediaSpan, Scored

FinishReason = Literal["stop", "length", "abort", "error"]


class NewSequence(msgspec.Struct, frozen=True):
    """A request to generate one sequence.

    `max_tokens`: 0 computes the prompt and samples no token.
    `min_tokens`: no stop token is sampled before this many other tokens.
    `adapter`: an adapter revision, "" for the base model.
    `group`: while one sequence of a group is unfinished, the queue accepts further sequences of the
    group even if it is full.
    `media`: the spans of its media, by ascending `start`, which do not overlap.
    `media_runs`, `rope_positions`: passed on to the runtime; see `Admit`.
    """

    id: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: bytes = b""
    adapter: str = ""
    group: str = ""
    media: tuple[MediaSpan, ...] = ()
    media_runs: tuple[MediaRun, ...] = ()
    rope_positions: bytes = b""


class Progress(msgspec.Struct, frozen=True):
    """The result of one step for request `id`. No Progress of the request follows after a `finish`.

    `token_id`: a new token; None if a stop token ended the sequence, if it failed, or with
    `scored`.
    `cached_tokens`: number of prompt tokens found in the prefix cache, only in the first Progress
    of a request.
    `error`: why the guide stopped the sequence.
    `scored`: the next prompt tokens with log-probabilities, from the second prompt token on. All of
    them come before the first sampled token.
    """

    id: str
    token_id: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    cached_tokens: int | None = None
    finish: FinishReason | None = None
    error: str | None = None
    scored: tuple[Scored, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """The state of one request in the scheduler.

    Known tokens are the prompt and the tokens generated so far. Computed tokens are known tokens
    whose keys and values are in the KV blocks. 0 <= computed < known, until nothing is left to
    sample. Steps in flight already count: `computed` includes the `in_flight_tokens` that they
    compute, and `known` includes the `pending_samples` tokens whose values have not been read yet.

    `known_limit`: the most tokens that the sequence may have.
    `row`: its row, -1 while it waits.
    `keys`: the root key and the keys of its full blocks, as far as they were needed.
    `published`: number of its leading blocks that the prefix index has already or need not have.
    `decoding`: it has sampled a token since it got its row, or a step in flight samples one.
    `guide`: constrains its tokens.
    `unreported`: tokens forced before the first sampled token.
    `unsent`: number of its last tokens that the runtime does not know yet.
    `speculator`: proposes its draft tokens, if speculation is on.
    `next_score`: the first position whose logits give a log-probability for `prompt_logprobs` that
    has not been reported yet.
    `adapter`: its adapter revision, "" for the base model.
    `adapter_slot`: the adapter's slot in the runtime, set when the sequence is queued.
    `restored_by`: the step that restores its blocks from the CPU KV cache; 0 if no block is being
    restored, or a planned step already waits for them.
    `group`: the sequences of one client request, which are accepted together; "" for none.
    `arrival`: its number in the order of arrival.
    `arrived_at`: number of prefill tokens that had been computed when it arrived.
    `credit`: tenths of tokens that it may give to shorter prompts.
    `awaits`: the sequence that computes the next block of its missing prefix.
    `awaits_blocks`: its prefix is not looked up again until `awaits` has published this many
    blocks.
    `snapshot`: the slot of the recurrent state with which its next chunk starts; None for the state
    of its row.
    `branch`: the position where another sequence is known to leave its prompt, so that a snapshot
    is worth saving there; 0 for none.
    `saved`: the last position at which it has saved or restored a snapshot since it got its row.
    `media`: the spans of its media, by ascending `start`.
    `media_runs`, `rope_positions`: see `Admit`.
    """

    id: str
    tokens: array[int]
    sampling: Sampling
    seed: int
    known_limit: int
    min_tokens: int
    stop_token_ids: frozenset[int]
    top_logprobs: int | None
    prompt_logprobs: int | None
    salt: bytes
    adapter: str
    group: str
    media: tuple[MediaSpan, ...] = ()
    media_runs: tuple[MediaRun, ...] = ()
    rope_positions: bytes = b""

    adapter_slot: int = NO_ADAPTER
    arrival: int = 0
    arrived_at: int = 0
    credit: int = 0
    awaits: Sequence | None = None
    awaits_blocks: int = 0
    snapshot: int | None = None
    branch: int = 0
    saved: int = 0
    prompt_tokens: int = field(init=False)
    next_score: int = field(init=False)
    row: int = -1
    computed: int = 0
    in_flight_tokens: int = 0
    pending_samples: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    published: int = 0
    restored_by: int = 0
    cached_tokens: int | None = None
    reported: bool = False
    aborted: bool = False
    decoding: bool = False
    guide: Guide | None = None
    speculator: Speculator | None = None
    unreported: list[int] = field(default_factory=list)
    unsent: int = 0

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.next_score = 0 if self.prompt_logprobs is not None else self.prompt_tokens - 1

    @classmethod
    def of(cls, new: NewSequence, known_limit: int) -> Sequence:
        """Return a new sequence without row, blocks and guide."""
        return cls(
            id=new.id,
            tokens=array("i", new.token_ids),
            sampling=new.sampling,
            seed=new.seed,
            known_limit=known_limit,
            min_tokens=new.min_tokens,
            stop_token_ids=new.stop_token_ids,
            top_logprobs=new.top_logprobs,
            prompt_logprobs=new.prompt_logprobs,
            salt=new.cache_salt,
            adapter=new.adapter,
            group=new.group,
            media=new.media,
            media_runs=new.media_runs,
            rope_positions=new.rope_positions,
        )

    def as_admit(self) -> Admit:
        """Return the message that gives the sequence its row in the runtime."""
        return Admit(
            row=self.row,
            token_ids=tuple(self.tokens),
            prompt_tokens=self.prompt_tokens,
            sampling=self.sampling,
            seed=self.seed,
            top_logprobs=self.top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
            adapter_slot=self.adapter_slot,
            suppressed_tokens=self.suppressed_tokens,
            suppressed_until=self.prompt_tokens + self.min_tokens,
            media=self.media_runs,
            rope_positions=self.rope_positions,
        )

    @property
    def unscored(self) -> int:
        """Number of prompt tokens whose log-probability is requested but not computed yet."""
        return self.prompt_tokens - 1 - self.next_score

    @property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Stop tokens that must not be sampled before `min_tokens` other tokens."""
        return tuple(sorted(self.stop_token_ids)) if self.min_tokens > 0 else ()

    @property
    def known(self) -> int:
        """Number of tokens that are known once the steps in flight are complete."""
        return len(self.tokens) + self.pending_samples

    @property
    def missing(self) -> int:
        """Number of known tokens that are not computed once the steps in flight are complete."""
        return self.known - self.computed

    @property
    def is_finishing(self) -> bool:
        """Whether no step after the steps in flight computes tokens of the sequence: it was
        aborted, or they sample its last token, or they complete a prompt with `max_tokens` 0."""
        if self.aborted or not self.missing:
            return True
        return self.pending_samples > 0 and self.known >= self.known_limit

    def divisible(self, length: int) -> int:
        """Return the length of the next chunk that is closest to `length`, which is positive, and
        does not end inside a `whole` span: it ends before the span if it can, else after it."""
        end = self.computed + length
        for span in self.media:
            if span.whole and span.start < end < span.start + span.length:
                if span.start > self.computed:
                    return span.start - self.computed
                return span.start + span.length - self.computed
        return length

    def start_chunk(self, chunk: Chunk, *, keeps_cache: bool) -> None:
        """Count the tokens of `chunk` as in flight, because its step is about to be submitted."""
        self.in_flight_tokens += chunk.length
        self.pending_samples += chunk.samples
        self.decoding |= chunk.samples
        if keeps_cache:
            self.computed += chunk.length

    def finish_chunk(self, chunk: Chunk) -> None:
        """Count the tokens of `chunk` as no longer in flight, because its step is complete."""
        self.in_flight_tokens -= chunk.length
        self.pending_samples -= chunk.samples

    def force(self) -> tuple[int, ...]:
        """Append and return the tokens that the guide forces. Return none if log-probabilities are
        requested, because a token that is not sampled has no log-probability, or if a step in
        flight samples the next token."""
        room = self.known_limit - len(self.tokens)
        if self.guide is None or self.top_logprobs is not None or room <= 0 or self.pending_samples:
            return ()
        forced = tuple(self.guide.force(room, self.stop_token_ids))
        self.tokens.extend(forced)
        return forced
