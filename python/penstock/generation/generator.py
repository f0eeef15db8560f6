"""Runs one model call, from the request to its events."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock import __version__
from penstock.adapters.view import NOT_FOUND, AdapterView
from penstock.base.errors import ContextLengthExceeded, InvalidRequest, ServiceError
from penstock.base.ids import new_id
from penstock.dialog import (
    AdapterRevision,
    Event,
    GenerateRequest,
    RunEnded,
    RunFailed,
    RunStarted,
    Sampling,
)
from penstock.engine.protocol import Engine, OutputStream
from penstock.engine.types import TokenRequest
from penstock.generation.answer_format import AnswerFormat, AnswerFormats
from penstock.generation.answer_grammar_builder import AnswerGrammarBuilder
from penstock.generation.best_of import best_events, total_usage
from penstock.generation.choice import Choice
from penstock.generation.constraint_compiler import ConstraintCompiler
from penstock.generation.dry_breakers import DryBreakers
from penstock.generation.echo import Echo
from penstock.generation.media.loader import MediaLoader
from penstock.generation.prompt.chat_template import select_chat_template
from penstock.generation.prompt.context_budget import Prompt
from penstock.generation.prompt.prompts import Prompts
from penstock.generation.repeated_calls import RepeatedCallFilter
from penstock.generation.request_checks import check_bias, check_request
from penstock.generation.sampling import resolve_sampling, seeds, uses_dry
from penstock.grammar.types import Grammar
from penstock.models.loader.sampling_defaults import SamplingDefaults
from penstock.models.media.prepared import MediaKind
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.text import ChatTemplate, Tokenizer, load_tokenizer
from penstock.text.chat_templates.chat_template import NO_MEDIA
from penstock.text.tool_parsers import AnswerSyntax

MOST_COUNTED_TOKENS: Final = 2**18
"""Maximum number of tokens that `count` counts, if the context length is not larger."""
PLAIN_SYNTAX: Final = AnswerSyntax()


@dataclass(slots=True)
class _Call:
    """A request that is ready for the engine.

    - `started`: the first event.
    - `requests`: one engine request (sequence) per choice.
    - `choices`: the choices, in the order of `requests`.
    - `per_prompt`: choices per prompt.
    - `ranked`: only the likeliest choices of each prompt are shown, after all are finished.
    """

    started: RunStarted
    requests: list[TokenRequest]
    choices: list[Choice]
    per_prompt: int
    ranked: bool

    def choices_by_id(self) -> dict[str, Choice]:
        return {one.id: choice for one, choice in zip(self.requests, self.choices, strict=True)}


class Generator:
    """Generates text with one model. To be called from the engine's asyncio loop.

    - `template`: the chat template; None: only completions are possible.
    - `defaults`: sampling parameters for requests that do not set them.
    - `syntax`: the syntax in which the model writes reasoning and tool calls.
    - `adapters`: the adapters that requests may name.
    - `media`: loads the media of requests, None for a model that reads text only.
    - `sampling_defaults`: the default sampling parameters with their origin, None if the origin is
      not known.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        defaults: Sampling | None = None,
        syntax: AnswerSyntax = PLAIN_SYNTAX,
        adapters: AdapterView | None = None,
        media: MediaLoader | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = Prompts(engine, tokenizer, template, media)
        self.reasons = syntax.reasons
        self._formats = AnswerFormats(tokenizer, syntax)
        self._grammars = AnswerGrammarBuilder(
            ConstraintCompiler(engine, tokenizer), tokenizer, syntax
        )
        self._adapters = adapters or AdapterView()
        self._defaults = defaults if defaults is not None else Sampling()
        self.sampling_defaults: SamplingDefaults | None = None
        self._breakers = DryBreakers(tokenizer)

    @classmethod
    def load(
        cls,
        engine: Engine,
        parts: TextParts,
        tool_syntax: str | None = None,
        adapters: AdapterView | None = None,
        defaults: SamplingDefaults | None = None,
        media: MediaLoader | None = None,
    ) -> Generator:
        """Make the generator of a loaded engine.

        - `parts`: the tokenizer and chat template of the engine's model.
        - `tool_syntax`: the name of the tool call syntax, None to detect it.
        - `adapters`: the adapters that requests may name.
        - `defaults`: default sampling parameters, None for the defaults in the model's files.
        - `media`: loads the media of requests, None for a model that reads text only.

        If the chat template cannot be used, a warning is logged and a built-in template that fits
        the model is used; without one, only completions work. Raises ModelError if the tokenizer
        cannot be used.
        """
        tokenizer = load_tokenizer(parts)
        placeholders = NO_MEDIA if media is None else media.processor.placeholders
        template, syntax = select_chat_template(parts, tokenizer, tool_syntax, placeholders)
        sampling = parts.generation_defaults if defaults is None else defaults.sampling
        generator = cls(engine, tokenizer, template, sampling, syntax, adapters, media)
        generator.sampling_defaults = defaults
        return generator

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def media_kinds(self) -> tuple[MediaKind, ...]:
        """The kinds of media that the model reads."""
        return self._prompts.media_kinds

    def close(self) -> None:
        """Stop the child processes that compile constraints. May be called again."""
        self._grammars.close()

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of one request, from RunStarted, once the engine has admitted the
        request, to RunEnded.

        An error that a client or an operator caused becomes the last event, RunFailed. If the
        request is refused, RunFailed is the only event. Closing the generator early aborts all
        sequences.
        """
        try:
            call = await self._prepare(request)
            outputs, revision = await self._submit(call, request.adapter)
            choices, by_id = call.choices, call.choices_by_id()
            withheld: defaultdict[int, list[Event]] = defaultdict(list)
            async with aclosing(outputs):
                yield msgspec.structs.replace(call.started, adapter_revision=revision)
                async for output in outputs:
                    choice = by_id[output.id]
                    events = choice.take(output)
                    if call.ranked:
                        withheld[choice.index] += events
                    else:
                        for event in events:
                            yield event
                    if choice.ended:
                        outputs.abort(output.id)
            if call.ranked:
                for event in best_events(withheld, choices, call.per_prompt, request.n):
                    yield event
        except ServiceError as error:
            yield RunFailed.of(error)
            return
        cut = any(choice.finish == "length" for choice in choices)
        yield RunEnded("incomplete" if cut else "completed", total_usage(choices, call.per_prompt))

    async def count(self, request: GenerateRequest) -> int:
        """Return the number of tokens in the prompts of a request, which may exceed the context
        length.

        Raises InvalidRequest, and ContextLengthExceeded for a prompt with more tokens than both
        MOST_COUNTED_TOKENS and the context length."""
        check_request(request)
        most = max(MOST_COUNTED_TOKENS, self._engine.info.max_model_len)
        try:
            prompts = await self._prompts.build(request, most)
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded(
                f"the {error.field} make more than {most} tokens, the most that are counted",
                field=error.field,
            ) from None
        return sum(len(prompt.token_ids) for prompt in prompts)

    def _started(self, request: GenerateRequest, prompts: Sequence[Prompt]) -> RunStarted:
        info = self._engine.info
        return RunStarted(
            model=request.model or info.model_id,
            created=int(time.time()),
            prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            fingerprint=f"penstock-{__version__}-{info.fingerprint}",
        )

    async def _prepare(self, request: GenerateRequest) -> _Call:
        """Build the prompts, grammar, engine requests and choices of a request. Raises
        InvalidRequest, Unavailable."""
        check_request(request)
        prompts = await self._prompts.build(request, self._engine.info.max_model_len)
        sampling = await self._sampling(request.sampling)
        formats = [self._formats.of(request, prompt.token_ids) for prompt in prompts]
        grammar = await self._grammars.of(request, formats[0])
        started = self._started(request, prompts)
        per_prompt = request.best_of or request.n
        requests = self._token_requests(request, prompts, per_prompt, sampling, grammar)
        choices = [
            self._choice(index, request, prompts[index // per_prompt], formats[index // per_prompt])
            for index in range(len(requests))
        ]
        return _Call(started, requests, choices, per_prompt, ranked=per_prompt > request.n)

    async def _submit(
        self, call: _Call, wanted: str | AdapterRevision | None
    ) -> tuple[OutputStream, str | None]:
        """Submit a call and wait until the engine has admitted it. Returns (outputs, adapter
        revision).

        An alias may be replaced between its lookup and the admission. If the engine has then freed
        the old revision, nothing has been generated, and the call is submitted with the new
        revision.
        """
        revision = None if wanted is None else self._adapters.resolve(wanted)
        while True:
            if revision is not None:
                call.requests = [_with_adapter(one, revision) for one in call.requests]
            outputs = self._engine.generate(*call.requests)
            try:
                await outputs.admitted()
            except BaseException as error:
                await outputs.aclose()
                if wanted is None or revision is None:
                    raise
                if not isinstance(error, ServiceError) or error.code != NOT_FOUND:
                    raise
            else:
                return outputs, revision
            revision = await self._adapters.resolve_again(wanted, revision)

    async def _sampling(self, wanted: Sampling) -> Sampling:
        check_bias(wanted.logit_bias or {}, self._engine.info.vocab_size)
        if uses_dry(wanted):  # DRY may read the whole vocabulary
            return await asyncio.to_thread(resolve_sampling, wanted, self._defaults, self._breakers)
        return resolve_sampling(wanted, self._defaults, self._breakers)

    def _token_requests(
        self,
        request: GenerateRequest,
        prompts: Sequence[Prompt],
        per_prompt: int,
        sampling: Sampling,
        grammar: Grammar | None,
    ) -> list[TokenRequest]:
        top = request.top_logprobs
        if top is not None and top > self._engine.info.vocab_size:
            raise InvalidRequest("top_logprobs is larger than the vocabulary", field="top_logprobs")
        if top is None and per_prompt > request.n:
            top = 0  # choices are ranked by their logprobs
        model_stops = frozenset[int]() if request.ignore_eos else self._tokenizer.stop_ids
        stop_ids = model_stops.union(request.stop_token_ids)
        numbered = seeds(request.sampling.seed, per_prompt * len(prompts))
        group = new_id("group_")
        return [
            TokenRequest(
                id=new_id("seq_"),
                token_ids=prompt.token_ids,
                sampling=sampling,
                seed=numbered[index * per_prompt + choice],
                max_tokens=prompt.max_tokens,
                stop_token_ids=stop_ids if request.ignore_eos else stop_ids | prompt.stop_ids,
                top_logprobs=top,
                constraint=grammar,
                not_streamed=not request.streamed and not request.stop,
                prompt_logprobs=request.top_logprobs if request.echo else None,
                group=group,
                min_tokens=request.limits.min_tokens,
                cache_salt=request.cache_salt.encode(),
                media=prompt.media,
                rope_positions=prompt.rope_positions,
            )
            for index, prompt in enumerate(prompts)
            for choice in range(per_prompt)
        ]

    def _choice(
        self, index: int, request: GenerateRequest, prompt: Prompt, answer_format: AnswerFormat
    ) -> Choice:
        with_logprobs = request.top_logprobs is not None
        echo = None
        if request.echo:
            scored = prompt.token_ids if with_logprobs else ()
            echo = Echo(
                self._tokenizer,
                prompt.echo,
                scored,
                shown_control=prompt.echoed_control,
                lead=prompt.lead,
            )
        return Choice(
            index,
            self._tokenizer,
            answer_format,
            prompt_ids=prompt.token_ids,
            stops=request.stop,
            echo=echo,
            with_logprobs=with_logprobs,
            max_calls=None if request.tool_policy.parallel else 1,
            repeats=RepeatedCallFilter() if request.tool_policy.mode == "required" else None,
        )


def _with_adapter(request: TokenRequest, revision: str) -> TokenRequest:
    """Return a copy of the request with a new id that uses an adapter revision."""
    return msgspec.structs.replace(request, id=new_id("seq_"), adapter=revision)
