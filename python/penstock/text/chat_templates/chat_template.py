"""Renders messages to a prompt in the format that a model was trained on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import jinja2

from penstock.base.errors import InvalidRequest, ModelError
from penstock.dialog import FunctionTool, Message, ReasoningPolicy
from penstock.models.media.prepared import MediaKind
from penstock.text.chat_templates.capabilities import TemplateCapabilities, probe_capabilities
from penstock.text.chat_templates.media_forms import MediaForms, probe_media_forms
from penstock.text.chat_templates.media_marks import numbers_in, with_marks_after_results
from penstock.text.chat_templates.media_slots import EncodedChat, encode_with_slots
from penstock.text.chat_templates.message_fallbacks import with_fallbacks
from penstock.text.chat_templates.nested_text import any_text, map_text, unused_mark
from penstock.text.chat_templates.render_budget import BUDGET, Budget, TemplateLimit, count_chars
from penstock.text.chat_templates.role_order import alternates
from penstock.text.chat_templates.sandbox import ChatEnvironment
from penstock.text.chat_templates.template_functions import Refusal
from penstock.text.chat_templates.template_messages import (
    media_kinds_of,
    template_messages,
    template_tools,
)
from penstock.text.tokenizers.token_pattern import pattern_of
from penstock.text.tokenizers.tokenizer import Tokenizer
from penstock.text.tool_parsers.syntax import ToolSyntax
from penstock.text.tool_parsers.tool_syntaxes import HERMES, REASONING_SYNTAXES

log = logging.getLogger(__name__)

MAX_TEMPLATE_CHARS = 256 * 1024
TEMPLATE_DECIDES = ReasoningPolicy()
NO_MEDIA: Mapping[MediaKind, str] = {}
# fmt: off
_FAILURES = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
)
# fmt: on


class ChatTemplate:
    """The compiled chat template of one model.

    The template comes from the model's files, never from a request. Raises ModelError if it is too
    large or cannot be compiled.

    A control token that a request contains ("<|im_end|>" in a user's text) reaches the model as
    plain text: `encode` splits the token before the text is tokenized. Control tokens of the
    template itself are recognized.

    Features that the template does not support (tools, tool calls, tool results, system messages,
    an order of roles) are rewritten into messages that the template supports.

    - `calls`: the syntax of rewritten tool calls; None: Hermes.
    - `for_tools`: the template for requests with tools, if the model has a separate one.
    - `placeholders`: for each kind of media that the model takes, the text that marks an item
      in the rendered prompt (`MediaProcessor.placeholders`). Media of other kinds are left out.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        calls: ToolSyntax | None = None,
        for_tools: ChatTemplate | None = None,
        placeholders: Mapping[MediaKind, str] = NO_MEDIA,
    ) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelError(
                f"tokenizer.chat_template has {len(source)} characters;"
                f" at most {MAX_TEMPLATE_CHARS} are read"
            )
        self._template = _compile(source)
        self._knows_developer = "developer" in source
        self._wants_thinking = "message.thinking" in source
        self._calls = calls if calls is not None else HERMES
        self._for_tools = for_tools
        self._placeholders = placeholders
        self._placeholder_pattern = pattern_of(placeholders.values())
        self._globals = {"bos_token": bos_token or "", "eos_token": eos_token or ""}

    @cached_property
    def capabilities(self) -> TemplateCapabilities:
        """Features that the template supports. The first access probes the template, which takes
        some milliseconds."""
        return probe_capabilities(self.render_plain)

    @cached_property
    def _wants_parts(self) -> bool:
        """Whether the template shows a message's content only if the content is a list of parts."""
        message = {"role": "user", "content": "probe-user"}
        return not self._shows(message) and self._shows(_in_parts(message))

    def _shows(self, message: dict[str, Any]) -> bool:
        try:
            return "probe-user" in self._rendered({"messages": [message], "tools": None})
        except InvalidRequest:
            return False

    def render_plain(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
    ) -> str:
        """Render messages and tools as the template does, without fallbacks. Raises the same
        errors as `render`."""
        return self._render({"messages": messages, "tools": tools})

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[FunctionTool] = (),
        reasoning: ReasoningPolicy = TEMPLATE_DECIDES,
    ) -> str:
        """Return the prompt text, up to the start of the assistant's answer.

        Raises InvalidRequest if the template refuses the messages (with the template's own error
        message), cannot render them, or exceeds the rendering limits.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(messages, tools=tools, reasoning=reasoning)
        inputs = self._template_inputs(messages, tools, reasoning)
        variables, _ = self._variables(inputs, media_kinds_of(messages, self._placeholders))
        return self._render_request(variables)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[FunctionTool] = (),
        reasoning: ReasoningPolicy = TEMPLATE_DECIDES,
        answer_prefix: str = "",
    ) -> EncodedChat:
        """Render a conversation and return the prompt's tokens, with a slot for each item of media.
        `answer_prefix`: the start of the answer, which the client wrote.

        Raises the same errors as `render`.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.encode(
                tokenizer, messages, tools=tools, reasoning=reasoning, answer_prefix=answer_prefix
            )
        kinds = media_kinds_of(messages, self._placeholders)
        inputs = self._template_inputs(messages, tools, reasoning)
        mark = None
        if any_text([inputs, answer_prefix], lambda text: self._mentions(tokenizer, text)):
            mark = unused_mark([inputs, answer_prefix])
            # Split before the fallbacks add tags around calls: these tags must be recognized.
            inputs = map_text(inputs, lambda text: self._split(tokenizer, text, mark))
            answer_prefix = self._split(tokenizer, answer_prefix, mark)
        variables, order = self._variables(inputs, kinds)
        text = self._render_with_prefix(variables, answer_prefix)
        pieces = [text] if mark is None else text.split(mark)
        if not kinds:
            return EncodedChat(tokenizer.encode_pieces(pieces))
        numbers: dict[str, list[int]] = {}
        for number in order:
            numbers.setdefault(self._placeholders[kinds[number]], []).append(number)
        return encode_with_slots(tokenizer, pieces, numbers)

    def _mentions(self, tokenizer: Tokenizer, text: str) -> bool:
        """Whether a text contains a control token or the placeholder of media."""
        found = tokenizer.mentions_control(text) or self._placeholder_pattern.search(text)
        return found is not None

    def _split(self, tokenizer: Tokenizer, text: str, mark: str) -> str:
        """Insert `mark` into the control tokens and placeholders in a text."""
        return self._placeholder_pattern.sub(
            lambda found: found[0][0] + mark + found[0][1:], tokenizer.break_control(text, mark)
        )

    def _render_with_prefix(self, variables: dict[str, Any], answer_prefix: str) -> str:
        """Render the prompt and append the answer prefix. The prefix is not reasoning: if the
        template opens reasoning, the closing tag is written before the prefix."""
        text = self._render_request(variables)
        if not answer_prefix:
            return text
        opened = next(
            (tags for tags in REASONING_SYNTAXES if text.rstrip().endswith(tags.open)), None
        )
        return (
            text + answer_prefix
            if opened is None
            else f"{text.rstrip()}\n\n{opened.close}\n\n{answer_prefix}"
        )

    def _template_inputs(
        self,
        messages: Sequence[Message],
        tools: Sequence[FunctionTool],
        reasoning: ReasoningPolicy,
    ) -> dict[str, Any]:
        """Return the messages, tools and reasoning policy under the names that templates use."""
        inputs: dict[str, Any] = {
            "messages": template_messages(
                messages, knows_developer=self._knows_developer, media=self._placeholders
            ),
            "tools": template_tools(tools),
        }
        if reasoning.enabled is not None:
            inputs["enable_thinking"] = inputs["thinking"] = reasoning.enabled
        if reasoning.effort is not None:
            inputs["reasoning_effort"] = inputs["reasoning_strength"] = reasoning.effort
        return inputs

    def _variables(
        self, inputs: dict[str, Any], kinds: Sequence[MediaKind] = ()
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Return the inputs with fallbacks for features that the template does not support, and the
        numbers of the items in the order of the prompt. `kinds`: the kind of each item."""
        shown, defined = inputs["messages"], inputs["tools"]
        if kinds and self.capabilities.results:
            shown = with_marks_after_results(shown, kinds, self._media.in_results)
        if defined or not alternates(shown) or any("tool_calls" in m for m in shown):
            shown, defined = with_fallbacks(shown, defined, self.capabilities, self._calls)
        if self._wants_thinking:
            shown = [_with_thinking(message) for message in shown]
        order: tuple[int, ...] = ()
        if kinds:
            order = numbers_in([message["content"] for message in shown], len(kinds))
            shown = [{**m, "content": self._media.content(m["content"], kinds)} for m in shown]
        return {**inputs, "messages": shown, "tools": defined}, order

    @cached_property
    def _media(self) -> MediaForms:
        """The forms in which the template shows media. The first access probes the template."""
        return probe_media_forms(self.render_plain, self.capabilities, self._placeholders)

    def _render_request(self, variables: dict[str, Any]) -> str:
        """Render the messages of a request, and log a failure: probes of the template may fail."""
        try:
            return self._render(variables)
        except InvalidRequest as error:
            cause = error.__cause__
            if isinstance(cause, _FAILURES) and not isinstance(cause, Refusal):
                log.info("the chat template failed: %r", cause)
            raise

    def _render(self, variables: dict[str, Any]) -> str:
        if self._wants_parts:
            messages = [_in_parts(message) for message in variables["messages"]]
            variables = {**variables, "messages": messages}
        return self._rendered(variables)

    def _rendered(self, variables: dict[str, Any]) -> str:
        try:
            return self._attempt(variables, "messages")
        except InvalidRequest:
            if not variables["tools"]:
                raise
        self._attempt({**variables, "tools": None}, "messages")
        return self._attempt(variables, "tools")  # rendering works without tools: blame the tools

    def _attempt(self, variables: dict[str, Any], field: str) -> str:
        """Render the template once. Raises InvalidRequest that names `field`."""
        token = BUDGET.set(Budget(count_chars(variables)))
        try:
            return self._template.render(
                **self._globals, **variables, documents=None, add_generation_prompt=True
            )
        except Refusal as error:
            raise InvalidRequest(
                f"the model's chat template refuses these {field}: {error}", field=field
            ) from error
        except (TemplateLimit, RecursionError, MemoryError) as error:
            log.warning("the chat template exceeded its limits: %s", error)
            reason = str(error) if isinstance(error, TemplateLimit) else "it is nested too deeply"
            raise InvalidRequest(
                f"the model's chat template exceeded its limits with these {field}: {reason}",
                field=field,
                code="chat_template_limit",
            ) from error
        except _FAILURES as error:
            raise InvalidRequest(
                f"the model's chat template cannot render these {field}", field=field
            ) from error
        finally:
            BUDGET.reset(token)


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a list of parts."""
    if isinstance(message["content"], list):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    """Copy the reasoning of a message with tool calls to the key "thinking", which gpt-oss's
    template reads."""
    if "reasoning_content" not in message or "tool_calls" not in message or message["content"]:
        return message
    return {**message, "thinking": message["reasoning_content"]}


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    token = BUDGET.set(Budget(len(source)))
    try:
        return ChatEnvironment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"tokenizer.chat_template, line {error.lineno}: {error.message}"
        ) from error
    except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelError(f"tokenizer.chat_template cannot be compiled: {error}") from error
    finally:
        BUDGET.reset(token)
