"""Fallbacks for features that a template lacks, and the built-in templates."""

from __future__ import annotations

import json

import pytest

from penstock.dialog import Message, Reasoning, ReasoningPolicy, Text, ToolCall, ToolResult
from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text import ChatTemplate, Tokenizer
from penstock.text.chat_templates.known_templates import known_template
from penstock.text.chat_templates.message_fallbacks import short_id
from penstock.text.tool_parsers import TOOL_SYNTAXES, Harmony
from tests.support.checkpoints.tiny_tokenizer import CHATML, WORDS, byte_letters, tiny_tokenizer
from tests.support.model_output_examples import PING, TOOLS, WEATHER

SYSTEM = Message("system", (Text("Be brief."),))
USER = Message("user", (Text("Weather?"),))
ASSISTANT = Message("assistant", (Text("Fine."),))
ARGUMENTS = '{"city": "Oslo", "days": 2}'
CALLED = Message(
    "assistant", (Text("I look."), ToolCall("call_0123456789", "get_weather", ARGUMENTS))
)
RESULT = Message("tool", (ToolResult("call_0123456789", "rain", "get_weather"),))
PINGED = Message("tool", (ToolResult("call_1", "pong", "ping"),))
THANKS = Message("user", (Text("Thanks!"),))

SIGNS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "phi4": ("<|im_start|>", "<|im_end|>", "<|im_sep|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "granite": ("<|start_of_role|>", "<|end_of_role|>"),
    "deepseek": ("<｜User｜>", "<｜Assistant｜>"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
    "mistral": ("[INST]", "[/INST]"),
    "zephyr": ("<|user|>", "<|assistant|>"),
}
TALK = [SYSTEM, USER, ASSISTANT, THANKS]
SHOWN = {
    "chatml": (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\nFine.<|im_end|>\n<|im_start|>user\nThanks!<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "phi4": (
        "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Weather?"
        "<|im_end|><|im_start|>assistant<|im_sep|>Fine.<|im_end|><|im_start|>user<|im_sep|>Thanks!"
        "<|im_end|><|im_start|>assistant<|im_sep|>"
    ),
    "llama3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>"
        "user<|end_header_id|>\n\nWeather?<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
        "\n\nFine.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nThanks!<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "gemma": (
        "<s><start_of_turn>user\nBe brief.\n\nWeather?<end_of_turn>\n<start_of_turn>model\nFine."
        "<end_of_turn>\n<start_of_turn>user\nThanks!<end_of_turn>\n<start_of_turn>model\n"
    ),
    "granite": (
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>user"
        "<|end_of_role|>Weather?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>Fine."
        "<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>Thanks!<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>"
    ),
    "deepseek": (
        "<s>Be brief.<｜User｜>Weather?<｜Assistant｜>Fine.<｜end▁of▁sentence｜><｜User｜>Thanks!"
        "<｜Assistant｜>"
    ),
    "phi3": (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nWeather?<|end|>\n<|assistant|>\nFine.<|end|>\n"
        "<|user|>\nThanks!<|end|>\n<|assistant|>\n"
    ),
    "mistral": "<s>[INST] Be brief.\n\nWeather? [/INST] Fine.</s>[INST] Thanks! [/INST]",
    "zephyr": (
        "<|system|>\nBe brief.</s>\n<|user|>\nWeather?</s>\n<|assistant|>\nFine.</s>\n<|user|>\n"
        "Thanks!</s>\n<|assistant|>\n"
    ),
}  # fmt: skip


def known(name: str, syntax: str = "hermes") -> ChatTemplate:
    source = known_template(SIGNS[name], "m")
    assert source is not None
    calls = TOOL_SYNTAXES[syntax]
    assert not isinstance(calls, Harmony)
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", calls=calls)


@pytest.mark.parametrize("name", SIGNS)
def test_known_template_renders_the_format_of_its_family(name: str) -> None:
    assert known(name).render(TALK) == SHOWN[name]


def test_families_without_control_tokens_are_found_by_name() -> None:
    source = known_template((), "Llama-2-7b-chat.Q4_0")
    assert source is not None
    assert ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(TALK) == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nWeather? [/INST] Fine. </s><s>[INST] Thanks!"
        " [/INST]"
    )
    assert known_template((), "some-base-model") is None


@pytest.mark.parametrize("syntax", sorted(set(TOOL_SYNTAXES) - {"harmony"}))
@pytest.mark.parametrize("name", SIGNS)
def test_tools_calls_and_results_are_shown_in_every_template(name: str, syntax: str) -> None:
    calls = TOOL_SYNTAXES[syntax]
    assert not isinstance(calls, Harmony)
    shown = known(name, syntax).render([SYSTEM, USER, CALLED, RESULT, PINGED, THANKS], tools=TOOLS)
    assert '"name": "get_weather"' in shown and '"Weather of a place"' in shown
    assert calls.write([("function_name", {"argument": "value"})]) in shown
    assert "I look.\n" + calls.write([("get_weather", json.loads(ARGUMENTS))]) in shown
    assert "rain\n</tool_response>\n<tool_response>\npong\n</tool_response>\nThanks!" in shown
    assert shown.index("get_weather") < shown.index("Weather?") < shown.index("rain")


def test_template_with_tool_support_renders_tools_itself() -> None:
    source = (
        "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<{{ c.function.name }}"
        " {{ c.function.arguments | tojson }}>{% endfor %}|{% endfor %}"
    )
    template = ChatTemplate(source)
    assert (
        template.capabilities.tools
        and template.capabilities.calls
        and template.capabilities.results
    )
    assert template.render([USER, CALLED, RESULT], tools=[WEATHER, PING]) == (
        "get_weather;ping;user:Weather?|assistant:I look.<get_weather " + ARGUMENTS + ">|tool:rain|"
    )


def test_tools_get_missing_fields_that_a_template_requires() -> None:
    needs = "{{ f.name + ': ' + f.description }}{% for p in f.parameters.properties %} {{ p }}"
    source = (
        "{% for tool in tools or [] %}{% set f = tool.function %}<tool_call>"
        + needs
        + "{% endfor %}"
        "{% endfor %}{{ messages[-1].content }}"
    )
    shown = ChatTemplate(source).render([USER], tools=[PING, WEATHER])
    assert shown.startswith("<tool_call>ping: <tool_call>get_weather: Weather of a place city")
    plain = ChatTemplate("{{ tools | tojson }}{{ messages[-1].content }}")
    assert '"function": {"name": "ping"}' in plain.render([USER], tools=[PING])


def test_arguments_are_text_if_the_template_prints_them_unchanged() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ '<' + c.function.name + c.function.arguments + '>' }}{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(source).capabilities.text_arguments
    assert f"<get_weather{ARGUMENTS}>" in ChatTemplate(source).render([USER, CALLED, RESULT])


def test_ids_are_short_if_the_template_requires_nine_characters() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}"
        "{% if m.tool_call_id is defined and m.tool_call_id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}{{ m.tool_call_id }};{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.capabilities.short_ids
    shown = template.render([USER, CALLED, RESULT])
    assert shown.count(short_id("call_0123456789")) == 2


def test_effort_and_thinking_reach_the_template_under_all_names() -> None:
    source = (
        "{{ messages[0].content }}{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}"
        " {{ reasoning_strength }}"
    )
    policy = ReasoningPolicy(enabled=True, effort="high")
    assert ChatTemplate(source).render([USER], reasoning=policy) == "Weather?True True high high"


def test_reasoning_before_calls_is_passed_as_thinking() -> None:
    source = (
        "{% for message in messages %}{{ message.thinking }}{{ message.content }}"
        "{% for c in message.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    )
    thought = Message("assistant", (Reasoning("hm"), ToolCall("c", "ping", "{}")))
    assert "hm" in ChatTemplate(source).render([USER, thought])


MARKS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]"]
MARKS += ["<|python_start|>", "<|python_end|>", "<start_function_call>", "<escape>"]


def marking_tokenizer() -> Tokenizer:
    """A tokenizer in which the marks around calls are control tokens."""
    types = [TokenType.NORMAL] * (256 + len(WORDS)) + [TokenType.CONTROL] * len(MARKS)
    return tiny_tokenizer(
        tokens=byte_letters() + WORDS + MARKS,
        token_types=[int(t) for t in types],
        bos_id=None,
        eos_id=None,
    )


@pytest.mark.parametrize(
    "syntax", ["hermes", "qwen3_coder", "mistral", "pythonic", "functiongemma"]
)
def test_clients_cannot_forge_control_tokens_around_calls(syntax: str) -> None:
    calls = TOOL_SYNTAXES[syntax]
    assert not isinstance(calls, Harmony)
    tokenizer, template = marking_tokenizer(), ChatTemplate(CHATML, calls=calls)

    def talk(text: str) -> list[Message]:
        called = ToolCall("c", "get_weather", json.dumps({"city": text, text: [text]}))
        return [
            Message("system", (Text(text),)),
            Message("user", (Text(text),)),
            Message("assistant", (Text(text), called)),
            Message("tool", (ToolResult("c", text, "get_weather"),)),
        ]

    def control_tokens(text: str) -> list[int]:
        ids = template.encode(tokenizer, talk(text), tools=TOOLS).token_ids
        shown = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert shown == template.render(talk(text), tools=TOOLS)
        return [token for token in ids if token in tokenizer.control_ids]

    marks = {tokenizer.control_tokens[mark] for mark in calls.marks() if mark in MARKS}
    own = control_tokens("Oslo")
    assert control_tokens("".join(MARKS)) == own
    assert bool(marks.intersection(own)) == (calls.section.open in MARKS)
