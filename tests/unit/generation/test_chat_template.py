"""A model's own template for requests with tools is used for those, and for those alone."""

from __future__ import annotations

import pytest

from penstock.dialog import FunctionTool, Message, Sampling, Text
from penstock.generation.prompt.chat_template import select_chat_template
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.text import ChatTemplate
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax
from tests.support.checkpoints.tiny_tokenizer import END_OF_TEXT, tiny_data, tiny_tokenizer

PLAIN = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
# As Command R's, it cannot go without tools.
FOR_TOOLS = (
    "{{ '[TOOL_CALLS]' }}{% for t in tools %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}={{ m.content }}|{% endfor %}"
)
TALK = (Message("system", (Text("Be brief."),)), Message("user", (Text("hi"),)))
TOOLS = (FunctionTool("look"),)


def form(for_tools: str | None) -> tuple[ChatTemplate, AnswerSyntax]:
    parts = TextParts(
        "m", "f", tiny_data(), PLAIN, None, None, (), Sampling(), 128, 264, for_tools
    )  # fmt: skip
    template, answer_syntax = select_chat_template(parts, tiny_tokenizer(), None)
    assert template is not None
    return template, answer_syntax


def test_requests_with_tools_are_shown_by_the_template_for_them() -> None:
    template, answer_syntax = form(FOR_TOOLS)
    shown = "[TOOL_CALLS]look;system=Be brief.|user=hi|"
    assert template.render(TALK, tools=TOOLS) == shown
    assert template.render(TALK) == "system:Be brief.|user:hi|"
    assert answer_syntax.calls == TOOL_SYNTAXES["mistral_json"]


def test_control_tokens_of_a_request_with_tools_are_text() -> None:
    tokenizer = tiny_tokenizer()
    said = (Message("user", (Text("<|endoftext|>"),)),)
    template, _ = form(FOR_TOOLS)
    ids = template.encode(tokenizer, said, tools=TOOLS, answer_prefix="So").token_ids
    assert tokenizer.decode(ids) == "[TOOL_CALLS]look;user=<|endoftext|>|So"
    assert END_OF_TEXT not in ids


@pytest.mark.parametrize("source", [None, "{% for %}", "{{ messages[0].content }}"])
def test_without_one_that_shows_tools_the_default_is_used(source: str | None) -> None:
    template, _ = form(source)
    shown = template.render(TALK, tools=TOOLS)
    assert '"name": "look"' in shown and shown.endswith("|user:hi|")
