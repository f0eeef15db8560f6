"""One model call from request to events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from penstock import __version__
from penstock.adapters.view import AdapterView
from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.base.ids import new_id
from penstock.dialog import Event, GenerateRequest, Outlet, RunEnded, RunStarted, Sampling
from penstock.engine.protocol import Engine
from penstock.engine.types import TokenRequest
from penstock.generation.adapter_retry import Batches, open_with_adapter
from penstock.generation.answer_format import AnswerFormat, AnswerFormats
from penstock.generation.answer_grammar_builder import AnswerGrammarBuilder
from penstock.generation.choice import Choice
from penstock.generation.constraint_compiler import ConstraintCompiler
from penstock.generation.dry_breakers import DryBreakers
from penstock.generation.echo import Echo
from penstock.generation.merge import best, merge, stream, total_usage
from penstock.generation.prompt.builder import PromptBuilder
from penstock.generation.prompt.chat_template import select_chat_template
from penstock.generation.prompt.context_budget import Prompt
from penstock.generation.prompt.media import without_media
from penstock.generation.prompt.texts import prompt_chars
from penstock.generation.repeated_calls import RepeatedCallFilter
from penstock.generation.request_checks import check_bias, check_request
from penstock.generation.sampling import resolve_sampling, seeds, uses_dry
from penstock.grammar.types import Grammar
from penstock.models.loader.sampling_defaults import SamplingDefaults
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.text import ChatTemplate, Tokenizer, load_tokenizer
from penstock.text.detokenizer import plain_texts
from penstock.text.tool_parsers import AnswerSyntax

LONG_PROMPT_CHARS: Final = 8192
"""A longer prompt is rendered and tokenized in a thread; about 2 ms of work."""
MOST_COUNTED_TOKENS: Final = 2**18
"""To count is not to fit; but what no model's context holds is not tokenized to the end."""
PLAIN_SYNTAX: Final = AnswerSyntax()


class Generator:
    """Calls one model. `defaults`: the sampling of requests that ask for none. `syntax`: how the
    model writes reasoning and calls.

    Attribute: `sampling_defaults`, the same with its origin, None where that is not known.
    `template` None: completions only. All methods are called from the engine's asyncio loop.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        defaults: Sampling | None = None,
        syntax: AnswerSyntax = PLAIN_SYNTAX,
        adapters: AdapterView | None = None,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._texts = plain_texts(tokenizer)
        self._prompts = PromptBuilder(tokenizer, template)
        self._forms = AnswerFormats(tokenizer, syntax)
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
    ) -> Generator:
        """For a loaded engine and the text parts of its model. `tool_syntax`: how it writes calls,
        None to find that out. `adapters`: those that requests may name. `defaults` None: what the
        model's files name.

        A chat template that cannot be used is reported and replaced by one that fits the model, if
        there is one; else completions are left. Raises ModelError for a tokenizer that cannot be
        used.
        """
        tokenizer = load_tokenizer(parts)
        template, syntax = select_chat_template(parts, tokenizer, tool_syntax)
        sampling = parts.generation_defaults if defaults is None else defaults.sampling
        generator = cls(engine, tokenizer, template, sampling, syntax, adapters)
        generator.sampling_defaults = defaults
        return generator

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def close(self) -> None:
        """End what was started beside the engine: child processes. May be called again."""
        self._grammars.close()

    async def run(
        self, request: GenerateRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[Event, None]:
        """The events of one call: RunStarted first, RunEnded last. Deltas of a single answer may go
        through `outlet` instead.

        Closing it early aborts all its sequences. Raises InvalidRequest (ContextLengthExceeded)
        before the first event, and what the engine raises: Overloaded, Unavailable, EngineFault.
        """
        check_request(request)
        request = without_media(request)
        prompts = await self._build(request, self._engine.info.max_model_len)
        sampling = await self._sampling(request.sampling)
        forms = [self._forms.of(request, prompt.token_ids) for prompt in prompts]
        grammar = await self._grammars.of(request, forms[0])
        started = self._started(request, prompts)
        per_prompt = request.best_of or request.n
        calls = self._token_requests(request, prompts, per_prompt, sampling, grammar)
        choices = [
            self._choice(index, request, prompts[index // per_prompt], forms[index // per_prompt])
            for index in range(len(calls))
        ]

        def open_batches(revision: str | None) -> Batches:
            own = calls if revision is None else [_with_adapter(c, revision) for c in calls]
            return self._batches(request, own, choices, outlet)

        opened = open_with_adapter(self._adapters, request.adapter, open_batches)
        async with opened as (revision, batches):
            yield msgspec.structs.replace(started, adapter_revision=revision)
            async for events in batches:
                for event in events:
                    yield event
        cut = any(choice.finish == "length" for choice in choices)
        yield RunEnded("incomplete" if cut else "completed", total_usage(choices, per_prompt))

    async def count(self, request: GenerateRequest) -> int:
        """How many tokens the prompts of a request have, also where no context would hold them.

        Raises InvalidRequest as `run` does, and ContextLengthExceeded over MOST_COUNTED_TOKENS."""
        check_request(request)
        request = without_media(request)
        most = max(MOST_COUNTED_TOKENS, self._engine.info.max_model_len)
        try:
            prompts = await self._build(request, most)
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

    def _batches(
        self,
        request: GenerateRequest,
        calls: Sequence[TokenRequest],
        choices: Sequence[Choice],
        outlet: Outlet | None,
    ) -> Batches:
        if len(calls) == 1:
            return stream(self._engine, calls[0], choices[0], outlet)
        batches = merge(self._engine, calls, choices)
        if request.best_of is not None and request.best_of > request.n:
            return best(batches, choices, request.best_of, request.n)
        return batches

    async def _build(self, request: GenerateRequest, max_model_len: int) -> tuple[Prompt, ...]:
        vocab_size = self._engine.info.vocab_size
        if prompt_chars(request) > LONG_PROMPT_CHARS:
            return await asyncio.to_thread(self._prompts.build, request, max_model_len, vocab_size)
        return self._prompts.build(request, max_model_len, vocab_size)

    async def _sampling(self, wanted: Sampling) -> Sampling:
        check_bias(wanted.logit_bias or {}, self._engine.info.vocab_size)
        if uses_dry(wanted):  # may walk the vocabulary
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
            top = 0  # answers are ranked by the logprobs of their tokens
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
                whole=not request.streamed and not request.stop,
                prompt_logprobs=request.top_logprobs if request.echo else None,
                group=group,
                min_tokens=request.limits.min_tokens,
                cache_salt=request.cache_salt.encode(),
            )
            for index, prompt in enumerate(prompts)
            for choice in range(per_prompt)
        ]

    def _choice(
        self, index: int, request: GenerateRequest, prompt: Prompt, form: AnswerFormat
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
            self._texts,
            form,
            prompt_ids=prompt.token_ids,
            stops=request.stop,
            echo=echo,
            with_logprobs=with_logprobs,
            max_calls=None if request.tool_policy.parallel else 1,
            repeats=RepeatedCallFilter() if request.tool_policy.mode == "required" else None,
        )


def _with_adapter(call: TokenRequest, revision: str) -> TokenRequest:
    """The call for another revision, under an id of its own."""
    return msgspec.structs.replace(call, id=new_id("seq_"), adapter=revision)
