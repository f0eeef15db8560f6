"""What crosses the wall between the engine and its callers: TokenRequest in, TokenOutput out."""

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
    prompt. `sampling` is resolved: no None that the model's defaults would fill.

    `stop_token_ids` end the sequence and are not part of the answer; none of them is drawn before
    `min_tokens` others, unless there is a `constraint` without `triggers`, which ends where it
    ends.
    `max_tokens` is already clamped to the context; with 0 the prompt is computed and nothing drawn.
    `cache_salt` keeps prefix blocks of different tenants apart. A `constraint` needs an engine that
    was taught the vocabulary; the end of the grammar ends the sequence. `prompt_logprobs`: how many
    alternatives to tell with the log-probability of each token of the prompt after the first; None
    to tell nothing of it, which reads prompts faster. `whole`: the caller looks at nothing before
    the last token, so that chunks may come joined. `adapter`: a revision, "" for the base model;
    one that the engine does not have is refused with `adapter_not_found`. `group`: the same for all
    sequences of one client's request, unique to it: a queue that had room for the first takes the
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
    whole: bool = False
    prompt_logprobs: int | None = None
    adapter: str = ""
    group: str = ""
    min_tokens: int = 0


class AdapterSource(msgspec.Struct, frozen=True):
    """A revision of an adapter, and the folder with its files, which nobody changes while the
    engine has it. A `pinned` one stays in memory."""

    revision: str
    folder: str
    pinned: bool = False


class AdapterState(msgspec.Struct, frozen=True):
    """Of one revision that an engine has. `rank`: the largest of its factors; `bytes`: what it
    takes in memory when it is `resident`. A `retired` one goes with the last of the sequences that
    it has leases of."""

    revision: str
    rank: int
    bytes: int
    retired: bool = False
    active_leases: int = 0
    resident: bool = True


class EmbedRequest(msgspec.Struct, frozen=True):
    """Sequences to embed, each by itself. None is empty, or longer than the context. `adapter`: as
    of TokenRequest, for all of them. `second_starts`: of pairs of texts, where the second one of
    each begins, for models that tell the two apart; else empty."""

    id: str
    sequences: tuple[tuple[int, ...], ...]
    adapter: str = ""
    second_starts: tuple[int, ...] = ()


class EmbedOutput(msgspec.Struct, frozen=True):
    """What one step made for one request: the next of its vectors, in the order of its sequences,
    as float32 in the machine's order of bytes. The last chunk has `finish`; after it none
    follows."""

    id: str
    vectors: bytes
    finish: FinishReason | None = None
    error: str | None = None


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token of the answer or, with its logprob always, of the prompt."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step made for one request. The last chunk has `finish`; after it none follows.
    The first one says how many prompt tokens came from the prefix cache. `step_time_s`:
    `time.monotonic()` at the end of the step, the same clock in all processes of a machine.
    `prompt`: the next tokens of the prompt, from its second one on, where they are asked for; all
    of them come before the first token of the answer. `first_step_time_s`: the end of the
    step of its first token, where it is made of several chunks."""

    id: str
    tokens: tuple[TokenDelta, ...]
    step_time_s: float
    cached_tokens: int | None = None
    finish: FinishReason | None = None
    error: str | None = None
    prompt: tuple[TokenDelta, ...] = ()
    first_step_time_s: float | None = None


class EngineInfo(msgspec.Struct, frozen=True):
    """What a caller must know of a loaded engine. `embedding_width`: numbers of an embedding, 0
    where the model writes text instead. `memory_bytes`: of the host's memory, by its formula."""

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

    `grammar_mask_seconds`: time in which masks were computed; `grammar_mask_wait_seconds`: the part
    of it for which a step had to wait after its forward pass. `forced_tokens`: tokens of answers
    that a grammar left no choice about. `draft_tokens`: guesses of speculation that were
    computed; `accepted_tokens`: those that were right. `host_cache_saves`: blocks that went from a
    GPU's cache to the host's memory; `host_cache_restores`: that came back.
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
