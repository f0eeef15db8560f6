"""One request: as the scheduler is told of it, its state inside, and what a step made of it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from penstock.dialog import Sampling
from penstock.scheduler.guide import Guide
from penstock.scheduler.ngram_speculation import NgramSpeculator
from penstock.scheduler.types import NO_ADAPTER, Admit, Chunk, Scored

FinishReason = Literal["stop", "length", "abort", "error"]


class NewSequence(msgspec.Struct, frozen=True):
    """One sequence to generate. With a `max_tokens` of 0 the prompt is computed and nothing
    sampled.
    No stop token is sampled before `min_tokens` others. `adapter`: a revision, "" for none. While
    one of a `group` is unfinished, the queue is never too full for the others of it."""

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


class Progress(msgspec.Struct, frozen=True):
    """What one step made for request `id`.

    `token_id` None: no token (a stop token ended the sequence, or it failed). After a `finish` none
    follows. `cached_tokens`: prompt tokens that came from the prefix cache; on the first Progress
    of a request only. `error`: what its guide found wrong. `scored`: the next tokens of its
    prompt, from the second one on; all of them come before the first sampled token.
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
    """One request. Known tokens are the prompt and what was sampled; computed ones are those whose
    keys and values are in its blocks. 0 <= computed < known, always, until nothing is left to draw.

    Steps in flight count as done, as far as numbers go: `computed` includes the `in_flight_tokens`
    tokens
    that they compute, `known` the `pending_samples` tokens whose values are not here yet.

    `row` -1: waiting. `keys`: the root, then the keys of its full blocks, as far as they were
    needed; `published`: how many of its blocks are, or need not be, in the prefix index.
    `decoding`: it drew a token since it got its row, or a step in flight samples one. `guide`
    steers
    what is sampled; `unreported` tokens it forced before the first draw, and as many of the known
    ones as `unsent` says are still to be told to the runtime. `speculator` proposes its next
    tokens, where that is on. `next_score`: the first position whose logits say what the token of
    the prompt after it is worth to one who asked for that (`prompt_logprobs`) and was not told yet.
    `adapter`: the revision that it computes with, from the runtime's slot `adapter_slot` on as
    soon as it is queued. `restored_by`: the step that brings blocks of it back from the host, 0
    when they are known, or awaited, to be there. `group`: of the requests that are admitted
    together, "" for none. `arrival`: its place in the order of arrival. `arrived_at`: how many
    prefill tokens had been computed when it arrived. `saved`: how many tenths of tokens it may give
    to shorter prompts. `awaits`: the sequence that computes most of what it misses, at least until
    that one has published `awaits_blocks` of its blocks.
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

    adapter_slot: int = NO_ADAPTER
    arrival: int = 0
    arrived_at: int = 0
    saved: int = 0
    awaits: Sequence | None = None
    awaits_blocks: int = 0
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
    speculator: NgramSpeculator | None = None
    unreported: list[int] = field(default_factory=list)
    unsent: int = 0

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)
        self.next_score = 0 if self.prompt_logprobs is not None else self.prompt_tokens - 1

    @classmethod
    def of(cls, new: NewSequence, known_limit: int) -> Sequence:
        """A sequence that waits for all that it needs."""
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
        )

    def as_admit(self) -> Admit:
        """Tells the runtime that the sequence takes its row."""
        return Admit(
            row=self.row,
            token_ids=tuple(self.tokens),
            prompt_tokens=self.prompt_tokens,
            sampling=self.sampling,
            seed=self.seed,
            top_logprobs=self.top_logprobs,
            prompt_logprobs=self.prompt_logprobs,
            adapter_slot=self.adapter_slot,
            held_back=self.held_back,
            held_until=self.prompt_tokens + self.min_tokens,
        )

    @property
    def unscored(self) -> int:
        """Of how many tokens of the prompt the log-probability is wanted still."""
        return self.prompt_tokens - 1 - self.next_score

    @property
    def held_back(self) -> tuple[int, ...]:
        """Tokens that are not sampled before `min_tokens` others."""
        return tuple(sorted(self.stop_token_ids)) if self.min_tokens > 0 else ()

    @property
    def known(self) -> int:
        """Tokens that are known when the steps in flight are over."""
        return len(self.tokens) + self.pending_samples

    @property
    def missing(self) -> int:
        """Known tokens that are not computed when the steps in flight are over."""
        return self.known - self.computed

    @property
    def is_finishing(self) -> bool:
        """Whether no step after those in flight computes anything for it: it was dropped, or they
        draw its last token, or compute all of a prompt that has no answer."""
        if self.aborted or not self.missing:
            return True
        return self.pending_samples > 0 and self.known >= self.known_limit

    def start_chunk(self, chunk: Chunk, *, keeps_cache: bool) -> None:
        """A step that computes `chunk` is about to be submitted."""
        self.in_flight_tokens += chunk.length
        self.pending_samples += chunk.samples
        self.decoding |= chunk.samples
        if keeps_cache:
            self.computed += chunk.length

    def finish_chunk(self, chunk: Chunk) -> None:
        """The step that computes `chunk` is over."""
        self.in_flight_tokens -= chunk.length
        self.pending_samples -= chunk.samples

    def force(self) -> tuple[int, ...]:
        """Append what the guide allows alone. Nothing where log-probabilities are wanted: those
        of a token that nobody drew are not known."""
        room = self.known_limit - len(self.tokens)
        if self.guide is None or self.top_logprobs is not None or room <= 0:
            return ()
        forced = tuple(self.guide.force(room))
        self.tokens.extend(forced)
        return forced
