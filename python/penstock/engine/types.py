"""The messages between an engine and its callers: TokenRequest in, TokenOutput out."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.dialog import Sampling
from penstock.grammar.types import Grammar

FinishReason = Literal["stop", "length", "abort", "error"]


NO_RANKING: Final = "this model does not rerank; name a reranker"
RANKING_ALONE: Final = "this model reranks and does nothing else; name another one"
NO_EMBEDDINGS: Final = "this model writes text and makes no embeddings; name an embedding model"
NO_ADAPTERS: Final = "adapters are off for this model; it must be started with --enable-lora"
ENCODER_ADAPTERS: Final = "adapters are for decoders; this model is an encoder"
NO_TEXT: Final = "this model writes no text; name a model that writes"


class TokenRequest(msgspec.Struct, frozen=True):
    """One sequence to generate. `n` choices are `n` TokenRequests: the prefix cache shares the
    prompt. `sampling` is resolved: no None is left that a model default would fill.

    `stop_token_ids` end the sequence and are not part of the answer. None of them is sampled before
    `min_tokens` tokens, except with a `constraint` without `triggers`, which ends with its grammar.
    `max_tokens` is already limited to the context; 0 computes the prompt and samples nothing.
    `cache_salt` separates the prefix blocks of different tenants. A `constraint` needs an engine
    that has the vocabulary; the end of the grammar ends the sequence. `prompt_logprobs`: number of
    alternatives to return with the log-probability of each prompt token after the first; None
    returns nothing about the prompt and prefills faster. `not_streamed`: the caller reads nothing
    before the last token, so outputs may be coalesced. `adapter`: a revision, "" for the base
    model; an unknown one is refused with `adapter_not_found`. `group`: the same for all sequences
    of one client's request, and unique to it: a queue that has room for the first admits the
    others.
    """

    id: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    top_logprobs: int | None = None
    cache_salt: bytes = b""
    constraint: Grammar | None = None
    not_streamed: bool = False
    prompt_logprobs: int | None = None
    adapter: str = ""
    group: str = ""
    min_tokens: int = 0


class AdapterSource(msgspec.Struct, frozen=True):
    """A revision of an adapter and the folder with its files, which must not change while the
    engine has it. A `pinned` revision stays in memory."""

    revision: str
    folder: str
    pinned: bool = False


class AdapterState(msgspec.Struct, frozen=True):
    """The state of one revision in an engine. `rank`: the largest of its factors; `bytes`: its
    memory when `resident`. A `retired` revision is freed with the last sequence that has a lease of
    it."""

    revision: str
    rank: int
    bytes: int
    retired: bool = False
    active_leases: int = 0
    resident: bool = True


class EmbedRequest(msgspec.Struct, frozen=True):
    """Sequences to embed, each by itself; none is empty or longer than the context. `adapter`: see
    TokenRequest, for all of them. `second_starts`: for pairs of texts, the start of each second
    text, if the model distinguishes the two; else empty."""

    id: str
    sequences: tuple[tuple[int, ...], ...]
    adapter: str = ""
    second_starts: tuple[int, ...] = ()


class EmbedOutput(msgspec.Struct, frozen=True):
    """The vectors that one step made for one request: the next ones in the order of its sequences,
    as float32 in native byte order. The last output has `finish`."""

    id: str
    vectors: bytes
    finish: FinishReason | None = None
    error: str | None = None


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token of the answer, or of the prompt, which always has its logprob."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens that one step made for one request. The last output has `finish`.

    The first output has the number of prompt tokens found in the prefix cache. `step_time_s`:
    `time.monotonic()` at the end of the step, the same clock in all processes of a machine.
    `prompt`: the next tokens of the prompt, from its second one on, if they are asked for; all of
    them come before the first token of the answer. `first_step_time_s`: the end of the step of the
    first token, if several outputs were coalesced.
    """

    id: str
    tokens: tuple[TokenDelta, ...]
    step_time_s: float
    cached_tokens: int | None = None
    finish: FinishReason | None = None
    error: str | None = None
    prompt: tuple[TokenDelta, ...] = ()
    first_step_time_s: float | None = None


class EngineInfo(msgspec.Struct, frozen=True):
    """Facts about a loaded engine. `embedding_width`: numbers per embedding, 0 for a model that
    generates text. `memory_bytes`: CPU memory, by the memory formula."""

    model_id: str
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    cache_blocks: int
    block_size: int
    weight_bytes: int
    fingerprint: str
    embedding_width: int = 0
    memory_bytes: int = 0


class EngineGauges(msgspec.Struct):
    """A snapshot for /metrics; counters only grow while the engine process lives.

    `grammar_mask_seconds`: time spent computing masks; `grammar_mask_wait_seconds`: the part of it
    for which a step waited after its forward pass. `forced_tokens`: answer tokens that a grammar
    forced. `draft_tokens`: speculated tokens that were computed; `accepted_tokens`: those that were
    accepted. `host_cache_saves`: blocks copied from a GPU's cache to CPU memory;
    `host_cache_restores`: blocks copied back.
    """

    sequences_running: int = 0
    sequences_waiting: int = 0
    sequences_capacity: int = 0
    kv_cache_blocks_used: int = 0
    kv_cache_blocks_total: int = 0
    tokens_processed: int = 0
    prefix_cache_lookups: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_evictions: int = 0
    preemptions: int = 0
    completed_stop: int = 0
    completed_length: int = 0
    completed_abort: int = 0
    completed_error: int = 0
    grammars_compiled: int = 0
    grammars_reused: int = 0
    grammars_refused: int = 0
    grammar_compile_seconds: float = 0.0
    grammar_mask_seconds: float = 0.0
    grammar_mask_wait_seconds: float = 0.0
    forced_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    host_cache_blocks_used: int = 0
    host_cache_blocks_total: int = 0
    host_cache_saves: int = 0
    host_cache_restores: int = 0
