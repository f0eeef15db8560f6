"""Conversations whose order of roles a template refuses or loses."""

from __future__ import annotations

from typing import Literal

import pytest

from penstock.dialog import FunctionTool, Message, Reasoning, Text, ToolCall, ToolResult
from penstock.text import ChatTemplate
from penstock.text.chat_templates.message_fallbacks import short_id

SHOW = "[{{ m.role }}]{{ m.content }}"
ANY_ORDER = "{% for m in messages %}" + SHOW + "{% endfor %}"
LAST_SYSTEM = (  # as DeepSeek-R1-Distill
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% endif %}{% endfor %}{{ ns.system }}"
    "{% for m in messages if m.role != 'system' %}" + SHOW + "{% endfor %}"
)
ALTERNATING = (  # as Gemma 3
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}" + SHOW + "{% endfor %}"
)
FIRST_ONLY = (  # as Qwen 3.5
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    + SHOW
    + "{% endfor %}"
)
BEFORE_USER = (  # as Mistral 7B
    "{% for m in messages if m.role == 'user' %}[user]{{ messages[0].content + ':' if"
    " messages[0].role == 'system' }}{{ m.content }}{% endfor %}"
)
NEEDS_USER = (  # as Qwen 3.5
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}" + ANY_ORDER
)
CALLS = (
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{{ c.id }}){% endfor %}"
)
SEVERAL_CALLS = "{% for m in messages %}" + SHOW + CALLS + "{% endfor %}"
SINGLE_CALLS = (  # as Llama 3.1
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    + SHOW
    + CALLS
    + "{% endfor %}"
)
FIRST_CALL = SEVERAL_CALLS.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")

CONVERSATIONS = {
    "two systems": "sSu",
    "late system": "suaSU",
    "late developer": "duaDU",
    "system at the end": "suaUS",
    "two users": "suU",
    "two assistants": "uaAU",
    "assistant first": "aU",
    "system and assistant first": "saU",
}
ROLES: dict[str, Literal["system", "user", "assistant", "developer"]] = {
    "s": "system",
    "u": "user",
    "a": "assistant",
    "d": "developer",
}
SHOWN = {
    "last system": {
        "two systems": "s\n\nS[user]u",
        "late system": "s\n\nS[user]u[assistant]a[user]U",
        "late developer": "d\n\nD[user]u[assistant]a[user]U",
        "system at the end": "s\n\nS[user]u[assistant]a[user]U",
        "two users": "s[user]u[user]U",
        "two assistants": "[user]u[assistant]a[assistant]A[user]U",
        "assistant first": "[assistant]a[user]U",
        "system and assistant first": "s[assistant]a[user]U",
    },
    "alternating": {
        "two systems": "s\n\nS[user]u",
        "late system": "s\n\nS[user]u[assistant]a[user]U",
        "late developer": "d\n\nD[user]u[assistant]a[user]U",
        "system at the end": "s\n\nS[user]u[assistant]a[user]U",
        "two users": "s[user]u\n\nU",
        "two assistants": "[user]u[assistant]a\n\nA[user]U",
        "assistant first": "[user][assistant]a[user]U",
        "system and assistant first": "s[user][assistant]a[user]U",
    },
    "first only": {
        "two systems": "[system]s\n\nS[user]u",
        "late system": "[system]s\n\nS[user]u[assistant]a[user]U",
        "late developer": "[system]d\n\nD[user]u[assistant]a[user]U",
        "system at the end": "[system]s\n\nS[user]u[assistant]a[user]U",
        "two users": "[system]s[user]u[user]U",
        "two assistants": "[user]u[assistant]a[assistant]A[user]U",
        "assistant first": "[assistant]a[user]U",
        "system and assistant first": "[system]s[assistant]a[user]U",
    },
}
SOURCES = {"last system": LAST_SYSTEM, "alternating": ALTERNATING, "first only": FIRST_ONLY}

TOOL = FunctionTool("f", None, {"type": "object", "properties": {"x": {"type": "integer"}}})
CALLED = Message(
    "assistant",
    (
        Reasoning("hm"),
        Text("look"),
        ToolCall("one", "f", '{"x": 1}'),
        ToolCall("two", "f", '{"x": 2}'),
        ToolCall("three", "f", '{"x": 3}'),
    ),
)


def conversation(letters: str) -> list[Message]:
    return [Message(ROLES[letter.lower()], (Text(letter),)) for letter in letters]


def result(call_id: str) -> Message:
    return Message("tool", (ToolResult(call_id, f"of {call_id}", "f"),))


@pytest.mark.parametrize("talk", CONVERSATIONS)
@pytest.mark.parametrize("name", SOURCES)
def test_messages_are_merged_if_the_template_refuses_or_loses_them(name: str, talk: str) -> None:
    assert (
        ChatTemplate(SOURCES[name]).render(conversation(CONVERSATIONS[talk])) == SHOWN[name][talk]
    )


@pytest.mark.parametrize("talk", CONVERSATIONS)
def test_messages_that_the_template_shows_are_unchanged(talk: str) -> None:
    messages = conversation(CONVERSATIONS[talk])
    shown = "".join(
        f"[{m.role}]{letter}" for m, letter in zip(messages, CONVERSATIONS[talk], strict=True)
    )
    expected = shown.replace("developer", "system")
    assert ChatTemplate(ANY_ORDER).render(messages) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (ANY_ORDER, "[system]s"),
        (BEFORE_USER, "[user]s:"),
        (NEEDS_USER, "[system]s[user]"),
    ],
)
def test_user_message_is_added_after_a_single_system_message_if_required(
    source: str, expected: str
) -> None:
    assert ChatTemplate(source).render(conversation("s")) == expected


def test_reasoning_of_merged_messages_is_merged() -> None:
    source = ALTERNATING.replace(SHOW, SHOW + "<{{ m.reasoning_content }}>")
    thought = [Message("assistant", (Reasoning(t), Text(t.upper()))) for t in ("x", "y")]
    shown = ChatTemplate(source).render([*conversation("u"), *thought, *conversation("U")])
    assert shown == "[user]u<>[assistant]X\n\nY<x\n\ny>[user]U<>"


@pytest.mark.parametrize("source", [SINGLE_CALLS, FIRST_CALL], ids=["refused", "lost"])
def test_calls_are_split_if_the_template_shows_only_one(source: str) -> None:
    talk = [
        *conversation("u"),
        CALLED,
        result("three"),
        result("one"),
        result("other"),
        *conversation("U"),
    ]
    assert ChatTemplate(source).render(talk) == (
        '[user]u[assistant]look(f{"x": 1}one)[tool]of one[assistant](f{"x": 2}two)'
        '[assistant](f{"x": 3}three)[tool]of three[tool]of other[user]U'
    )


def test_several_calls_stay_in_one_message_if_the_template_shows_them() -> None:
    talk = [*conversation("u"), CALLED, result("two"), result("one")]
    assert ChatTemplate(SEVERAL_CALLS).render(talk) == (
        '[user]u[assistant]look(f{"x": 1}one)(f{"x": 2}two)(f{"x": 3}three)[tool]of two[tool]of one'
    )


def test_split_calls_get_short_ids() -> None:
    source = SINGLE_CALLS.replace(
        CALLS,
        CALLS + "{% for c in m.tool_calls or [] if c.id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endfor %}",
    )
    shown = ChatTemplate(source).render([*conversation("u"), CALLED, result("two")])
    assert f"{short_id('two')})[tool]of two[assistant]" in shown


def test_calls_are_written_as_text_if_the_template_shows_only_tools() -> None:
    source = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + ANY_ORDER
    template = ChatTemplate(source)
    assert template.capabilities.tools and not template.capabilities.calls
    shown = template.render([*conversation("u"), CALLED, result("one")], tools=[TOOL])
    assert '{"name": "f", "arguments": {"x": 2}}' in shown
