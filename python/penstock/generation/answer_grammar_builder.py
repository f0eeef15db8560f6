"""Builds the grammar of an answer from the tools, the reasoning and the client's constraint."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from penstock.base.errors import InvalidRequest, Unavailable
from penstock.dialog import Constraint, FunctionTool, GenerateRequest
from penstock.generation.answer_format import AnswerFormat
from penstock.generation.constraint_compiler import ConstraintCompiler
from penstock.grammar.json_schema.argument_schema import Unenforceable
from penstock.grammar.json_schema.schema_grammar import schema_of_grammar
from penstock.grammar.types import Grammar
from penstock.text import Tokenizer
from penstock.text.grammar_vocabulary import reserved_tokens
from penstock.text.tool_parsers import AnswerSyntax
from penstock.text.tool_parsers.answer_grammar import AnswerRules, answer_grammar
from penstock.text.tool_parsers.call_format import arguments_schema
from penstock.text.tool_parsers.call_grammar import call_grammar

log = logging.getLogger(__name__)


class AnswerGrammarBuilder:
    """Builds the grammars of one model's answers. To be called from the engine's asyncio loop."""

    def __init__(
        self, constraints: ConstraintCompiler, tokenizer: Tokenizer, syntax: AnswerSyntax
    ) -> None:
        self._constraints = constraints
        self._apart = reserved_tokens(tokenizer)
        self._syntax = syntax

    def close(self) -> None:
        """Stop the child processes. May be called again."""
        self._constraints.close()

    async def of(self, request: GenerateRequest, answer_format: AnswerFormat) -> Grammar | None:
        """Return the grammar of the answers to a request, or None if they are unconstrained.
        Reasoning is never constrained. Raises InvalidRequest that names the field, Unavailable."""
        prepare = self._constraints.prepare
        calls = self._calls(request, answer_format.tools)
        own: Grammar | None = None
        if request.constraint is not None:
            own = await prepare(request.constraint)
            if calls == "none" and answer_format.thinking == "none":
                return own
        if own is None and calls == "none":
            return None
        if own is None and calls == "may" and not any(tool.strict for tool in answer_format.tools):
            return await self._of_calls(request.tools, answer_format)
        answer = own.value if own is not None else None
        rules = AnswerRules(answer_format.tools, calls, answer, answer_format.thinking)
        composed = self._composed(rules, request.tools)
        try:
            return await prepare(composed)
        except InvalidRequest:
            tools = await self._usable(request.tools, answer_format.tools)
        try:
            return await prepare(self._composed(replace(rules, tools=tools), request.tools))
        except InvalidRequest:
            tools = tuple(tool if tool.strict else _unbound(tool) for tool in tools)
        return await prepare(self._composed(replace(rules, tools=tools), request.tools))

    async def _of_calls(
        self, given: Sequence[FunctionTool], answer_format: AnswerFormat
    ) -> Grammar | None:
        """Return the grammar of tool calls in answers that may contain calls, or None.

        The grammar applies from the start of a call. It enforces the functions' schemas as far as
        possible, else only JSON objects. If both fail, a warning is logged and calls are
        unconstrained: this is not an error for the client.
        """
        try:
            try:
                return await self._of_tools(answer_format, answer_format.tools)
            except InvalidRequest:
                tools = await self._usable(given, answer_format.tools)
            try:
                return await self._of_tools(answer_format, tools)
            except InvalidRequest:
                return await self._of_tools(answer_format, tuple(map(_unbound, tools)))
        except (InvalidRequest, Unavailable) as error:
            log.warning("the calls of an answer are not bound: %s", error)
            return None

    async def _of_tools(
        self, answer_format: AnswerFormat, tools: Sequence[FunctionTool]
    ) -> Grammar:
        """Return the grammar, with triggers, of calls of the tools. Raises InvalidRequest,
        Unavailable."""
        rules, triggers = call_grammar(self._syntax, self._apart, tools)
        value = json.dumps({"grammars": [{"lark_grammar": rules}]})
        grammar = await self._constraints.prepare(Constraint("llguidance", value))
        tags = self._syntax.reasoning if answer_format.thinking != "none" else None
        triggers = msgspec.structs.replace(
            triggers,
            reasoning_open=tags.open if tags is not None else "",
            reasoning_close=tags.close if tags is not None else "",
            reasoning_opened=answer_format.thinking == "open",
        )
        return msgspec.structs.replace(grammar, triggers=triggers)

    def _calls(
        self, request: GenerateRequest, tools: Sequence[FunctionTool]
    ) -> Literal["none", "may", "must", "one"]:
        policy = request.tool_policy
        if not tools:
            return "none"
        if policy.mode != "required":
            return "none" if self._syntax.calls is None else "may"
        if self._syntax.calls is None:
            raise InvalidRequest(
                "tool_choice: this model is served without calls of functions",
                field="tool_choice",
                code="unsupported_value",
            )
        return "one" if len(policy.names) == 1 or not policy.parallel else "must"

    def _composed(self, rules: AnswerRules, given: Sequence[FunctionTool]) -> Constraint:
        """Return the grammar of the whole answer as a constraint. Raises InvalidRequest for a
        strict function that the call syntax cannot enforce."""
        try:
            return Constraint("llguidance", answer_grammar(self._syntax, self._apart, rules))
        except Unenforceable as error:
            at = f" at {error.place}" if error.place else ""
            raise _refusal(
                given, error.tool, f"the JSON schema cannot be used{at}: {error}"
            ) from error

    async def _usable(
        self, given: Sequence[FunctionTool], tools: Sequence[FunctionTool]
    ) -> tuple[FunctionTool, ...]:
        """Return the tools without schema keywords that cannot be enforced. Raises InvalidRequest
        for a strict tool with such a keyword."""
        usable = []
        for tool in tools:
            schema = msgspec.json.encode(arguments_schema(tool)).decode()
            try:
                constraint = Constraint("json_schema", schema, tool.strict)
                grammar = await self._constraints.prepare(constraint)
            except InvalidRequest as error:
                if tool.strict:
                    raise _refusal(given, tool, error.message) from error
                usable.append(_unbound(tool))
                continue
            kept = tool.parameters if tool.strict else schema_of_grammar(grammar.value)
            usable.append(msgspec.structs.replace(tool, parameters=kept))
        return tuple(usable)


def _unbound(tool: FunctionTool) -> FunctionTool:
    return msgspec.structs.replace(tool, parameters={})


def _refusal(given: Sequence[FunctionTool], tool: FunctionTool, reason: str) -> InvalidRequest:
    field = f"tools[{given.index(tool)}].function.parameters"
    return InvalidRequest(f"{field}: {reason}", field=field)
