"""One model call from request to events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, cast

from penstock.base.errors import InvalidRequest, ModelError
from penstock.base.ids import new_id
from penstock.dialog import Event, GenerateRequest, RunEnded, RunStarted, Sampling, Usage
from penstock.engine.protocol import Engine
from penstock.engine.types import Grammar, TokenChunk, TokenRequest
from penstock.generation.breakers import Breakers
from penstock.generation.checks import check_bias, check_request
from penstock.generation.choice import Choice
from penstock.generation.constraints import Constraints
from penstock.generation.prompt import Prompt, PromptBuilder, prompt_chars
from penstock.generation.sampling import resolve_sampling, seeds, uses_dry
from penstock.models.tokenizer_data import TextParts
from penstock.text import ChatTemplate, Tokenizer, load_tokenizer

log = logging.getLogger(__name__)

LONG_PROMPT_CHARS: Final = 8192
"""A longer prompt is rendered and tokenized in a thread; about 2 ms of work."""


class Generator:
    """Calls one model. `defaults`: the sampling its generation config asks for.

    `template` None: completions only. All methods are called from the engine's asyncio loop.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        defaults: Sampling | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._prompts = PromptBuilder(tokenizer, template)
        self._constraints = Constraints(engine, tokenizer)
        self._defaults = defaults if defaults is not None else Sampling()
        self._breakers = Breakers(tokenizer)

    @classmethod
    def load(cls, engine: Engine, parts: TextParts) -> Generator:
        """For a loaded engine and the text parts of its model.

        A chat template that cannot be used is reported, and leaves completions. Raises ModelError
        for a tokenizer that cannot be used.
        """
        template = None
        if parts.chat_template is not None:
            try:
                template = ChatTemplate(
                    parts.chat_template, bos_token=parts.bos_token, eos_token=parts.eos_token
                )
            except ModelError as error:
                log.warning("%s: no chat, only completions: %s", parts.model_id, error)
        return cls(engine, load_tokenizer(parts), template, parts.generation_defaults)

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """The events of one call: RunStarted first, RunEnded last.

        Closing it early aborts all its sequences. Raises InvalidRequest (ContextLengthExceeded)
        before the first event, and what the engine raises: Overloaded, Unavailable, EngineFault.
        """
        check_request(request)
        prompt = await self._prompt(request)
        sampling = await self._sampling(request.sampling)
        grammar = None
        if request.constraint is not None:
            grammar = await self._constraints.prepare(request.constraint)
        info = self._engine.info
        yield RunStarted(request.model or info.model_id, int(time.time()), len(prompt.token_ids))
        calls = self._token_requests(request, prompt, sampling, grammar)
        choices = [self._choice(index, request, prompt) for index in range(len(calls))]
        if len(calls) == 1:
            stream = self._stream(calls[0], choices[0])
        else:
            stream = self._merge(calls, choices)
        async with aclosing(stream) as batches:
            async for events in batches:
                for event in events:
                    yield event
        cut = any(choice.finish == "length" for choice in choices)
        yield RunEnded("incomplete" if cut else "completed", _total(choices))

    async def _prompt(self, request: GenerateRequest) -> Prompt:
        info = self._engine.info
        build = self._prompts.build
        if prompt_chars(request) > LONG_PROMPT_CHARS:
            return await asyncio.to_thread(build, request, info.context_tokens, info.vocab_size)
        return build(request, info.context_tokens, info.vocab_size)

    async def _sampling(self, wanted: Sampling) -> Sampling:
        check_bias(wanted.logit_bias or {}, self._engine.info.vocab_size)
        if uses_dry(wanted):  # may walk the vocabulary
            return await asyncio.to_thread(resolve_sampling, wanted, self._defaults, self._breakers)
        return resolve_sampling(wanted, self._defaults, self._breakers)

    def _token_requests(
        self,
        request: GenerateRequest,
        prompt: Prompt,
        sampling: Sampling,
        grammar: Grammar | None,
    ) -> list[TokenRequest]:
        top = request.top_logprobs
        if top is not None and top > self._engine.info.vocab_size:
            raise InvalidRequest("top_logprobs is larger than the vocabulary", field="top_logprobs")
        stop_ids = frozenset[int]() if request.ignore_eos else self._tokenizer.stop_ids
        return [
            TokenRequest(
                id=new_id("seq_"),
                token_ids=prompt.token_ids,
                sampling=sampling,
                seed=seed,
                max_tokens=prompt.max_tokens,
                stop_token_ids=stop_ids,
                top_logprobs=top,
                constraint=grammar,
            )
            for seed in seeds(request.sampling.seed, request.n)
        ]

    def _choice(self, index: int, request: GenerateRequest, prompt: Prompt) -> Choice:
        echo = ""
        if request.echo and request.prompt is not None:
            given = request.prompt
            echo = given if isinstance(given, str) else self._tokenizer.decode(given)
        return Choice(
            index,
            self._tokenizer,
            prompt_tokens=len(prompt.token_ids),
            submitted_s=time.monotonic(),
            after=prompt.token_ids[-1],
            stops=request.stop,
            echo=echo,
        )

    async def _stream(
        self, call: TokenRequest, choice: Choice
    ) -> AsyncGenerator[list[Event], None]:
        """The events of one sequence, a list for each chunk that has any."""
        chunks = cast("AsyncGenerator[TokenChunk, None]", self._engine.generate(call))
        async with aclosing(chunks):
            async for chunk in chunks:
                events = choice.take(chunk)
                if events:
                    yield events
                if choice.ended:
                    return
        raise AssertionError("the engine's last chunk has a finish")

    async def _merge(
        self, calls: Sequence[TokenRequest], choices: Sequence[Choice]
    ) -> AsyncGenerator[list[Event], None]:
        """The events of several sequences as they come; the first failure ends all."""
        queue: asyncio.Queue[list[Event] | None] = asyncio.Queue()

        async def pump(call: TokenRequest, choice: Choice) -> None:
            try:
                async with aclosing(self._stream(call, choice)) as batches:
                    async for events in batches:
                        queue.put_nowait(events)
            finally:
                queue.put_nowait(None)

        tasks = [
            asyncio.create_task(pump(call, choice))
            for call, choice in zip(calls, choices, strict=True)
        ]
        try:
            open_streams = len(tasks)
            while open_streams:
                events = await queue.get()
                if events is not None:
                    yield events
                    continue
                open_streams -= 1
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _total(choices: Sequence[Choice]) -> Usage:
    """Of a run: the prompt counts once, the answers add up, times are those of the slowest."""
    usages = [choice.usage for choice in choices]
    return Usage(
        prompt_tokens=usages[0].prompt_tokens,
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=min(usage.cached_tokens for usage in usages),
        prompt_time_s=max(usage.prompt_time_s for usage in usages),
        completion_time_s=max(usage.completion_time_s for usage in usages),
    )
