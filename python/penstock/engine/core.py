"""The loop body of an engine that generates text: plan a step, execute it, return the tokens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from operator import attrgetter

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.base.resources import available_cores
from penstock.config import EngineSettings, LoraSettings, read_environment
from penstock.engine.adapters.null_slot_cache import slot_cache_for
from penstock.engine.admission import AdmissionQueue
from penstock.engine.media.encode_queue import EncodeQueue
from penstock.engine.media.encoder_cache import EncoderCache
from penstock.engine.media.media_modes import RequestModes, client_states
from penstock.engine.media.prompt_media import PromptMedia, kinds_of
from penstock.engine.refusals import unsupported
from penstock.engine.types import (
    NO_ADAPTERS,
    NO_EMBEDDINGS,
    NO_IMAGES,
    NO_SPEECH,
    AdapterSource,
    AdapterState,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageRequest,
    SpeechRequest,
    TokenDelta,
    TokenOutput,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState
from penstock.engine.weights_control import WeightsControl
from penstock.grammar.cache import GrammarCache
from penstock.grammar.token_masks import TokenMaskFiller
from penstock.grammar.vocabulary import Vocabulary
from penstock.runtime.live_weights import LiveWeights
from penstock.runtime.own_adapters import own_limits
from penstock.runtime.protocol import Runtime
from penstock.scheduler import CpuKvCacheIndex, Progress, Scheduler

FAILED_ROW = "the model gave no finite scores for this request"


class EngineCore:
    """The engine of one loaded model that generates text. Not thread-safe: one thread calls all
    methods.

    `threads`: number of threads that may fill grammar masks while a step computes.
    `lora`: the limits of adapters, None if adapters are off.
    `encoder_cache_bytes`: most memory of encoded media.
    """

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        info: EngineInfo,
        threads: int = 1,
        lora: LoraSettings | None = None,
        encoder_cache_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self._clock = clock
        self.info = info
        self._grammars = GrammarCache(info.vocab_size)
        self._masks = TokenMaskFiller(info.vocab_size, threads)
        self._stop_ids: frozenset[int] = frozenset()
        self._wake: Callable[[], None] = lambda: None
        self._adapters = slot_cache_for(runtime.adapters, lora, lambda: self._wake(), NO_ADAPTERS)
        self._media: EncodeQueue | None = None
        self._modes = RequestModes()
        if runtime.media is not None:
            cache = EncoderCache(runtime.media, encoder_cache_bytes)
            self._media = EncodeQueue(runtime.media, cache, clock)
            self._modes = RequestModes(runtime.media.modes)
            self._modes.load(self._adapters, self.call_when_ready)
        self.weights = WeightsControl(
            runtime.live_weights,
            self._adapters,
            self._weights_changed,
            lambda: self._wake(),
            lambda: scheduler.has_work,
            read_environment().home / "importance",
        )
        self._admissions = AdmissionQueue(
            scheduler, self._grammars, self._adapters, lambda: self._wake(), self._media
        )
        self._flying = False
        self._began = 0.0

    @classmethod
    def for_runtime(
        cls,
        runtime: Runtime,
        settings: EngineSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> EngineCore:
        """Return the engine of a loaded model. `clock`: measures its steps and pieces."""
        facts = runtime.info
        sizes = settings.step_sizes(facts.sizes)
        scheduler = Scheduler(
            num_blocks=facts.cache_blocks,
            block_size=facts.block_size,
            max_model_len=facts.max_model_len,
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_queue=settings.max_queue,
            prefix_caching=settings.enable_prefix_caching,
            no_kv_cache=settings.no_kv_cache,
            speculation=settings.speculates,
            drafter=facts.drafter,
            max_drafts=facts.max_drafts,
            cpu_cache=CpuKvCacheIndex(facts.cpu_blocks, facts.max_saves_per_step),
            state_snapshots=facts.state_snapshots,
            tells_prompts_apart=facts.tells_prompts_apart,
        )
        info = EngineInfo(
            model_id=facts.model_id,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            max_num_seqs=sizes.max_num_seqs,
            cache_blocks=facts.cache_blocks,
            block_size=facts.block_size,
            weight_bytes=facts.weight_bytes,
            fingerprint=facts.fingerprint,
            memory_bytes=facts.memory_bytes,
            media_kinds=kinds_of(runtime.media),
        )
        threads = settings.threads or available_cores()
        cache_bytes = settings.encoder_cache_mb << 20
        lora = settings.lora
        if runtime.media is not None:
            lora = own_limits(lora, runtime.media.modes)
        return cls(runtime, scheduler, info, threads, lora, cache_bytes, clock)

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, which is printed at start-up."""
        return self._runtime.report

    @property
    def live_weights(self) -> LiveWeights | None:
        """The weights, if they can be studied and changed while the model serves."""
        return self._runtime.live_weights

    @property
    def has_work(self) -> bool:
        encodes = self._media is not None and self._media.has_work
        completions = self._admissions.has_completions or self.weights.has_completions
        return self._scheduler.has_work or completions or encodes

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Set `wake`, which another thread calls when a grammar or an adapter has become ready, so
        that the engine has work again."""
        self._wake = wake

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Set the model's vocabulary, which constraints need."""
        self._grammars.set_tokenizer(vocabulary)
        self._stop_ids = frozenset(vocabulary.stop_ids)

    def submit(self, request: TokenRequest) -> None:
        """Queue a request. Raises InvalidRequest (`adapter_not_found` for an unknown revision),
        ContextLengthExceeded, Overloaded, or Unavailable if no thread can be started to compile its
        grammar."""
        if not all(0 <= token < self.info.vocab_size for token in request.token_ids):
            raise InvalidRequest(
                f"token ids must be at least 0 and below {self.info.vocab_size}", field="prompt"
            )
        if request.media or request.rope_positions:
            request = self._checked_media(request)
        request = self._modes.applied(request)
        if request.constraint is not None:
            self._masks.start()
        self._admissions.submit(request, self._stop_ids)

    def embed(self, request: EmbedRequest) -> None:
        """Refuse a request for embeddings, because the model generates text. Always raises
        InvalidRequest."""
        raise unsupported(NO_EMBEDDINGS)

    def speak(self, request: SpeechRequest) -> None:
        """Refuse a text to speak. Always raises InvalidRequest."""
        raise unsupported(NO_SPEECH)

    def paint(self, request: ImageRequest) -> None:
        """Refuse a request for images. Always raises InvalidRequest."""
        raise unsupported(NO_IMAGES)

    def abort(self, request_id: str) -> None:
        """Drop a request if it has not finished; no more output of it follows."""
        self._admissions.abort(request_id)

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        """Load an adapter revision in parallel with the steps. Return a future that completes at
        once or in a later `step`, or fails with AdapterRefused."""
        return self._adapters.add(source)

    def retire_adapter(self, revision: str) -> None:
        """Refuse a revision to new requests and free it after its last request. Do nothing if the
        revision is not loaded."""
        self._adapters.retire(revision)

    def adapters(self) -> tuple[AdapterState, ...]:
        """Return the state of every loaded revision of clients, whether in memory or not."""
        return client_states(self._adapters.states())

    def step(self) -> list[TokenOutput]:
        """Compute one step and return its outputs: an empty list if there was no work or no token
        was sampled.

        If the runtime overlaps steps and the next step can be planned already, the next step is
        submitted before the current one is collected. Its token masks follow once the current step
        is committed.
        """
        if not self._flying:
            self.weights.between_steps()
        outputs = self._admissions.release_ready() + self._encode_media()
        if not self._flying and not self._launch():
            return outputs
        ahead = self._scheduler.plan_ahead() if self._runtime.info.overlaps else None
        later = None
        if ahead is not None:
            later = self._masks.later() if self._scheduler.masks_need_commit else None
            self._runtime.submit(ahead, later)
        result = self._runtime.collect()
        now = self._clock()
        progress = self._scheduler.commit(result, now - self._began)
        if later is not None:
            later.begin(self._scheduler.mask_inputs)
        self._flying, self._began = ahead is not None, now
        self._admissions.finish(progress)
        return outputs + _outputs(progress, now)

    def gauges(self) -> EngineGauges:
        grammars, masks = self._grammars, self._masks
        gauges = EngineGauges(
            **msgspec.structs.asdict(self._scheduler.gauges()),
            grammars_compiled=grammars.compiled,
            grammars_reused=grammars.reused,
            grammars_refused=grammars.refused,
            grammar_compile_seconds=grammars.compile_s,
            grammar_mask_seconds=masks.fill_s,
            grammar_mask_wait_seconds=masks.wait_s,
        )
        if self._media is not None:
            self._media.report(gauges)
        return gauges

    def prepare(self) -> bool:
        """Do a short piece of work for later steps; see `Core.prepare`."""
        return self._runtime.prepare()

    def change_weights(self, order: WeightOrder) -> Future[WeightsState]:
        """Carry out an order for the weights; see `WeightsControl.order`."""
        return self.weights.order(order)

    def close(self) -> None:
        """Free the model's memory and end its threads."""
        self.weights.close()
        self._grammars.close()
        self._masks.close()
        self._adapters.close()
        self._runtime.close()

    def _checked_media(self, request: TokenRequest) -> TokenRequest:
        """Check the media of a request. Return the request with an answer that fits the positions
        that the media leave. Raises InvalidRequest or ContextLengthExceeded."""
        media = PromptMedia(len(request.token_ids), request.media, request.rope_positions)
        media.check(self.info.media_kinds)
        if self._media is not None:
            self._media.check(request.media)
        room = media.answer_room(request.max_tokens, self.info.max_model_len)
        return msgspec.structs.replace(request, max_tokens=room)

    def _encode_media(self) -> list[TokenOutput]:
        """Encode media of waiting requests: for as long as other requests may wait for their next
        token, or one large piece if none is being computed. Return the last outputs of requests
        whose media cannot be encoded."""
        if self._media is None or not self._media.has_work:
            return []
        failures = self._admissions.encode_media(self._scheduler.pause_s(self._media.num_waiting))
        self._scheduler.pause(self._media.last_s)
        return failures

    def _weights_changed(self) -> None:
        self._scheduler.change_weights()
        facts = self._runtime.info
        self.info = msgspec.structs.replace(
            self.info,
            weight_bytes=facts.weight_bytes,
            memory_bytes=facts.memory_bytes,
            fingerprint=facts.fingerprint,
        )

    def _launch(self) -> bool:
        """Plan a step and submit it. Return False if there is no work."""
        plan = self._scheduler.plan()
        if plan is None:
            return False
        self._began = self._clock()
        self._runtime.submit(plan, self._masks.begin(self._scheduler.mask_inputs))
        return True


def _outputs(progress: list[Progress], now: float) -> list[TokenOutput]:
    """Return one output per request, with all tokens that the step produced for the request."""
    outputs = []
    for _, group in itertools.groupby(progress, key=attrgetter("id")):
        parts = list(group)
        last = parts[-1]
        error = (last.error or FAILED_ROW) if last.finish == "error" else None
        outputs.append(
            TokenOutput(
                id=last.id,
                tokens=tuple(
                    TokenDelta(part.token_id, part.logprob, part.top)
                    for part in parts
                    if part.token_id is not None
                ),
                step_time_s=now,
                cached_tokens=parts[0].cached_tokens,
                finish=last.finish,
                error=error,
                prompt=tuple(
                    TokenDelta(one.token_id, one.logprob, one.top)
                    for part in parts
                    for one in part.scored
                ),
            )
        )
    return outputs
