"""The types that an engine and its callers exchange: requests, outputs, adapters, info and
gauges."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from penstock.dialog import Sampling
from penstock.grammar.types import Grammar
from penstock.models.media.prepared import MediaKind, PreparedMedia

FinishReason = Literal["stop", "length", "abort", "error"]


NO_RANKING: Final = "this model does not rerank; name a reranker"
RANKING_ALONE: Final = (
    "this model reranks and does nothing else: use it in /v1/rerank, or name another model"
)
NO_EMBEDDINGS: Final = "this model writes text and makes no embeddings; name an embedding model"
NO_ADAPTERS: Final = "adapters are off for this model; it must be started with --enable-lora"
ENCODER_ADAPTERS: Final = "adapters are for decoders; this model is an encoder"
NO_TEXT: Final = "this model writes no text; name a model that writes"
NO_SPEECH: Final = "this model does not speak; name a speech model"
NO_IMAGES: Final = "this model makes no images; name an image model"
SPEECH_ALONE: Final = (
    "this model makes speech and does nothing else: use it in /v1/audio/speech,"
    " or name another model"
)
IMAGES_ALONE: Final = (
    "this model makes images and does nothing else: use it in /v1/images/generations,"
    " or name another model"
)
MEDIA_ADAPTERS: Final = "adapters are for decoders; this model makes speech or images"


class MediaItem(msgspec.Struct, frozen=True):
    """An image, video or recording in the prompt of a request.

    `digest`: identifies the content of `media`.
    `start`, `length`: the item's tokens in the prompt, including separators.
    `runs`: (first token, number of tokens), relative to `start`, of the tokens whose embeddings are
    rows of the encoded item, in the order of these rows.
    `whole`: the tokens attend to each other in both directions.
    """

    digest: bytes
    media: PreparedMedia
    start: int
    length: int
    runs: tuple[tuple[int, int], ...]
    whole: bool = False


class TokenRequest(msgspec.Struct, frozen=True):
    """One sequence to generate. `n` choices are `n` TokenRequests, which share their prompt in the
    prefix cache.

    `sampling`: resolved, so that no field is None that a default of the model would fill.
    `max_tokens`: already limited to the context. 0 computes the prompt and samples no token.
    `stop_token_ids`: end the sequence and are not part of the answer.
    `min_tokens`: no stop token is sampled before this many tokens. Ignored if `constraint` has no
    `triggers`, because the end of the grammar then ends the answer.
    `cache_salt`: separates the prefix blocks of different tenants.
    `constraint`: the grammar of the answer, whose end ends the sequence. Needs an engine that has
    the vocabulary.
    `prompt_logprobs`: number of alternatives to return with the log-probability of each prompt
    token after the first. None returns no log-probabilities of the prompt and prefills faster.
    `not_streamed`: the caller reads no output before the last token, so outputs may be coalesced.
    `adapter`: an adapter revision, "" for the base model. An unknown revision is refused with
    `adapter_not_found`.
    `group`: equal for all sequences of one client request, and unique to that request. If the queue
    has room for the first sequence of a group, it admits all of them.
    `media`: the media of the prompt, by ascending `start`.
    `rope_positions`: the positions of the prompt's tokens, int32 [3, T] (time, height, width) in
    native byte order; empty for 0 to T - 1.
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
    media: tuple[MediaItem, ...] = ()
    rope_positions: bytes = b""


class AdapterSource(msgspec.Struct, frozen=True):
    """An adapter revision. `folder`: the folder with its files, which must not change while the
    engine has the revision. `pinned`: the revision stays in memory."""

    revision: str
    folder: str
    pinned: bool = False


class AdapterState(msgspec.Struct, frozen=True):
    """The state of one adapter revision in an engine.

    `rank`: the largest rank of its factors.
    `bytes`: the memory that it needs in an adapter slot.
    `retired`: it is refused to new requests, and freed when its last lease ends.
    `active_leases`: number of unfinished requests that use it.
    `resident`: it is in memory.
    """

    revision: str
    rank: int
    bytes: int
    retired: bool = False
    active_leases: int = 0
    resident: bool = True


class EmbedRequest(msgspec.Struct, frozen=True):
    """Sequences to embed independently of each other.

    `sequences`: token ids. No sequence is empty or longer than the context.
    `adapter`: an adapter revision for all sequences, "" for the base model.
    `second_starts`: for pairs of texts, the index at which the second text of each sequence starts.
    Empty for single texts, or if the model does not distinguish the two texts.
    `media`: the media of each sequence; empty if no sequence has any. For a model without text, a
    sequence has no tokens and one item of one token, whose row is the vector.
    `rope_positions`: the positions of the tokens of each sequence, see `TokenRequest`; empty if all
    of them are 0, 1, 2, ...
    """

    id: str
    sequences: tuple[tuple[int, ...], ...]
    adapter: str = ""
    second_starts: tuple[int, ...] = ()
    media: tuple[tuple[MediaItem, ...], ...] = ()
    rope_positions: tuple[bytes, ...] = ()


class EmbedOutput(msgspec.Struct, frozen=True):
    """The vectors that one step computed for one request.

    `vectors`: the next vectors in the order of the request's sequences, as float32 in native byte
    order.
    `finish`: set in the last output of the request.
    """

    id: str
    vectors: bytes
    finish: FinishReason | None = None
    error: str | None = None


class SpeechRequest(msgspec.Struct, frozen=True):
    """A text to speak.

    `sentences`: the text in pieces, in order. Requests take turns after each piece.
    `voice`: a voice of the model; any other name selects the model's default voice.
    `speed`: above 0; 2 is twice as fast as 1.
    """

    id: str
    sentences: tuple[str, ...]
    voice: str = ""
    speed: float = 1.0


class SpeechOutput(msgspec.Struct, frozen=True):
    """The sound of the next piece of a text.

    `audio`: signed 16-bit little-endian samples of one channel, at `EngineInfo.sample_rate`.
    `finish`: set in the last output of the request.
    """

    id: str
    audio: bytes
    finish: FinishReason | None = None
    error: str | None = None


class ImageRequest(msgspec.Struct, frozen=True):
    """Images to make from one prompt.

    `height`, `width`: pixels, multiples of `EngineInfo.image_multiple`.
    `seed`: of the first image; every further image has the next number.
    """

    id: str
    prompt: str
    height: int
    width: int
    seed: int
    n: int = 1
    negative_prompt: str = ""


class ImageOutput(msgspec.Struct, frozen=True):
    """The next image of a request. `png`: the PNG file. `finish`: set in the last output."""

    id: str
    png: bytes
    finish: FinishReason | None = None
    error: str | None = None


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token of the answer or of the prompt. `logprob`: always set for prompt tokens. `top`:
    (token id, logprob) of the most likely tokens, best first."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens that one step produced for one request.

    `tokens`: the next tokens of the answer.
    `step_time_s`: `time.monotonic()` at the end of the step, the same clock in all processes of a
    machine.
    `cached_tokens`: number of prompt tokens found in the prefix cache, in the first output only.
    `finish`: set in the last output.
    `prompt`: if requested, the next prompt tokens, from the second prompt token on. All of them
    come before the first token of the answer.
    `first_step_time_s`: if several outputs were coalesced, the end of the step that produced the
    first token.
    """

    id: str
    tokens: tuple[TokenDelta, ...]
    step_time_s: float
    cached_tokens: int | None = None
    finish: FinishReason | None = None
    error: str | None = None
    prompt: tuple[TokenDelta, ...] = ()
    first_step_time_s: float | None = None


StepOutput: TypeAlias = TokenOutput | EmbedOutput | SpeechOutput | ImageOutput


class EngineInfo(msgspec.Struct, frozen=True):
    """Describes a loaded engine.

    `embedding_width`: numbers per embedding, 0 for a model that generates text.
    `memory_bytes`: CPU memory according to the memory formula.
    `media_kinds`: the kinds of media that the model reads in prompts.
    `sample_rate`: samples per second of a model that speaks, else 0.
    `voices`: the names of its voices, the default voice first.
    `image_multiple`: the number that divides the sides of its images, 0 for a model that makes no
    images.
    """

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
    media_kinds: tuple[MediaKind, ...] = ()
    sample_rate: int = 0
    voices: tuple[str, ...] = ()
    image_multiple: int = 0


class EngineGauges(msgspec.Struct):
    """A snapshot of gauges and counters for /metrics. Counters only grow while the engine process
    lives.

    `tokens_processed`: tokens that steps computed, of prompts, answers and drafts.
    `generated_tokens`: tokens of answers.
    `grammar_mask_seconds`: time spent computing token masks.
    `grammar_mask_wait_seconds`: the part of this time for which a step waited after its forward
    pass.
    `forced_tokens`: answer tokens that a grammar forced.
    `draft_tokens`: draft tokens that were computed.
    `accepted_tokens`: draft tokens that were accepted. Both numbers are also given for each source:
    n-gram lookup, the draft model and MTP heads.
    `draft_seconds`: time that the draft model or the MTP heads took.
    `host_cache_saves`: KV blocks copied from a GPU to the CPU KV cache.
    `host_cache_restores`: KV blocks copied back to the GPU.
    `state_snapshots_used`, `state_snapshots_total`: slots for snapshots of recurrent states.
    `state_snapshot_saves`: snapshots that were saved.
    `state_snapshot_restores`: requests that started from a snapshot.
    `state_snapshot_evictions`: snapshots that were overwritten for other requests, or lost with
    their KV block.
    `encoder_cache_bytes`: encoded media in memory.
    `encoder_cache_hits`: items of requests that were encoded, or being encoded, for another
    request.
    `media_encode_seconds`: time spent encoding media.
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
    generated_tokens: int = 0
    forced_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    ngram_draft_tokens: int = 0
    ngram_accepted_tokens: int = 0
    draft_model_draft_tokens: int = 0
    draft_model_accepted_tokens: int = 0
    mtp_draft_tokens: int = 0
    mtp_accepted_tokens: int = 0
    draft_seconds: float = 0.0
    host_cache_blocks_used: int = 0
    host_cache_blocks_total: int = 0
    host_cache_saves: int = 0
    host_cache_restores: int = 0
    state_snapshots_used: int = 0
    state_snapshots_total: int = 0
    state_snapshot_saves: int = 0
    state_snapshot_restores: int = 0
    state_snapshot_evictions: int = 0
    encoder_cache_bytes: int = 0
    encoder_cache_hits: int = 0
    encoder_cache_misses: int = 0
    media_items_encoded: int = 0
    media_encode_seconds: float = 0.0
