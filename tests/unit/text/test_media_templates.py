"""Chat templates show one placeholder per item, in the client's order, and users forge none."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, Image, Message, Part, Text, ToolCall, ToolResult, Video
from penstock.models.media.prepared import MediaKind
from penstock.text import ChatTemplate
from penstock.text.chat_templates.media_marks import mark_of
from tests.support.checkpoints.tiny_tokenizer import CHATML
from tests.support.media.small_processor import AUDIO, END, IMAGE, START, media_tokenizer

ONE, TWO, SOUND, CLIP = Image(url="1"), Image(url="2"), Audio(url="3"), Video(url="4")
TOKENIZER = media_tokenizer()
IMAGE_ID = TOKENIZER.added_tokens[IMAGE]

# The content loops of official templates.
QWEN2_VL = """
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}{% else %}
{%- for content in message.content %}
{%- if content.type == 'image' or 'image' in content or 'image_url' in content %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif content.type == 'video' or 'video' in content %}
{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif 'text' in content %}{{- content.text }}{% endif %}
{%- endfor %}{% endif %}{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
SMOLVLM = """
{%- for message in messages %}{{ message['role'] | capitalize }}
{%- if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}
{%- for line in message['content'] %}
{%- if line['type'] == 'text' %}{{ line['text'] }}
{%- elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}
{{- '<end_of_utterance>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}
"""
LLAVA = """
{%- for message in messages %}{{ message['role'].upper() + ': ' }}
{%- for content in message['content'] | selectattr('type', 'equalto', 'image') %}
{{- '<image>\\n' }}{% endfor %}
{%- for content in message['content'] | selectattr('type', 'equalto', 'text') %}
{{- content['text'] + ' ' }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}
"""
GEMMA3 = """
{{- bos_token }}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' }}
{%- if message['content'] is string %}{{- message['content'] | trim }}
{%- elif message['content'] is iterable %}{% for item in message['content'] %}
{%- if item['type'] == 'image' %}{{- '<start_of_image>' }}
{%- elif item['type'] == 'text' %}{{- item['text'] | trim }}{% endif %}{% endfor %}
{%- else %}{{- raise_exception("Invalid content type") }}{% endif %}
{{- '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}
"""
QWEN2_AUDIO = """
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for content in message['content'] %}{% if 'audio' in content or 'audio_url' in content %}
{{- '<|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}
{%- elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
RESULTS = """
{%- for message in messages %}{{- '<|' + message.role + '|>' }}
{%- if message.content is string %}{{- message.content }}{% else %}
{%- for content in message.content %}
{%- if content.type == 'image' %}{{ '<image>' }}{% else %}{{- content.text }}{% endif %}
{%- endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}{{- call.function | tojson }}{% endfor %}
{%- endfor %}{% for tool in tools or [] %}{{- tool | tojson }}{% endfor %}
"""
STRING_RESULTS = RESULTS.replace(
    "message.content is string", "message.content is string or message.role == 'tool'"
)


def template(source: str, **placeholders: str) -> ChatTemplate:
    return ChatTemplate(source.strip(), placeholders=placeholders)  # type: ignore[arg-type]


def user(*parts: Part | str) -> Message:
    return Message("user", tuple(Text(p) if isinstance(p, str) else p for p in parts))


def test_parts_keep_the_order_of_the_client() -> None:
    shown = template(QWEN2_VL, image="<|image_pad|>", video="<|video_pad|>").render(
        [user("first\n", ONE, "then", CLIP, TWO)]
    )
    image, video = (f"<|vision_start|><|{k}_pad|><|vision_end|>" for k in ("image", "video"))
    assert shown == (
        f"<|im_start|>user\nfirst\n{image}then{video}{image}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_that_show_only_lists_get_lists() -> None:
    shown = template(SMOLVLM, image="<image>").render(
        [user(ONE, "What?"), Message("assistant", (Text("A dog."),)), user("Sure?")]
    )
    assert shown == (
        "User:<image>What?<end_of_utterance>\nAssistant: A dog.<end_of_utterance>\n"
        "User: Sure?<end_of_utterance>\nAssistant:"
    )


def test_a_template_may_move_images_to_the_front() -> None:
    assert template(LLAVA, image="<image>").render([user("Compare", ONE, "with", TWO)]) == (
        "USER: <image>\n<image>\nCompare with ASSISTANT:"
    )


def test_templates_without_content_parts_get_placeholder_texts_on_lines_of_their_own() -> None:
    shown = template(CHATML, image="<image>").render([user("Compare", ONE, TWO, "please")])
    assert "user\nCompare\n<image>\n<image>\nplease<|im_end|>" in shown


def test_failures_of_a_template_are_logged_for_requests_and_not_for_probes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    template(CHATML, image="<image>").render([user(ONE)])
    assert not caplog.records
    source = (
        "{{ messages[0].content }}{% if 'break' in messages[0].content %}{{ 1 + 'x' }}{% endif %}"
    )
    with pytest.raises(InvalidRequest, match="cannot render"):
        template(source).render([user("break")])
    assert [record.message[:25] for record in caplog.records] == ["the chat template failed:"]


def test_the_content_part_that_the_template_recognizes_is_found() -> None:
    shown = template(QWEN2_AUDIO, audio="<|AUDIO|>").render([user(SOUND, "What is said?")])
    assert "user\n<|audio_bos|><|AUDIO|><|audio_eos|>\nWhat is said?<|im_end|>" in shown


def test_fallbacks_keep_media_in_their_place() -> None:
    """The template refuses system messages and repeated roles."""
    shown = template(GEMMA3, image="<start_of_image>").render(
        [Message("system", (Text("Be kind."),)), user("a"), user(ONE), user("b", TWO)]
    )
    assert shown == (
        "<start_of_turn>user\nBe kind.\n\na<start_of_image>b<start_of_image><end_of_turn>\n"
        "<start_of_turn>model\n"
    )


CALL = Message("assistant", (ToolCall("c", "look", "{}"),))
RESULT = Message("tool", (ToolResult("c", "seen"), ONE))


def test_images_of_results_are_shown_in_the_result() -> None:
    shown = template(RESULTS, image="<image>").render([user("go"), CALL, RESULT, user(TWO)])
    assert "<|tool|>seen<image><|user|><image>" in shown


def test_images_follow_results_if_the_template_shows_none_in_results() -> None:
    results = Message("tool", (ToolResult("c", "seen"), ONE, ToolResult("d", ""), TWO))
    calls = Message("assistant", (ToolCall("c", "look", "{}"), ToolCall("d", "look", "{}")))
    shown = template(STRING_RESULTS, image="<image>").render([user("go"), calls, results])
    assert "<|tool|>seen<|tool|><|user|><image><image>" in shown


def test_results_that_become_user_messages_keep_their_images() -> None:
    shown = template(GEMMA3, image="<start_of_image>").render([user("go"), CALL, RESULT])
    assert "<tool_response>\nseen<start_of_image></tool_response>" in shown


def encoded(source: str, *messages: Message, **placeholders: str) -> tuple[list[int], list[int]]:
    """Return the starts of the slots and the numbers of their items."""
    placeholders = placeholders or {"image": IMAGE, "audio": AUDIO}
    chat = template(source, **placeholders).encode(TOKENIZER, messages)
    for slot in chat.slots:
        assert slot.length in (0, 1)
    return [slot.start for slot in chat.slots], [slot.number for slot in chat.slots]


def test_each_item_has_a_slot_at_its_placeholder() -> None:
    chat = template(CHATML, image=IMAGE, audio=AUDIO).encode(TOKENIZER, [user("x", ONE, SOUND)])
    for slot in chat.slots:
        text = TOKENIZER.token_bytes(chat.token_ids[slot.start]).decode()
        assert text == (IMAGE, AUDIO)[slot.number]
    assert [slot.number for slot in chat.slots] == [0, 1]


def test_slots_are_numbered_by_item_if_a_template_changes_their_order() -> None:
    kinds: tuple[MediaKind, ...] = ("image", "audio")
    by_kind = "".join(
        f"{{% for m in messages %}}{{% for c in m.content if c.type == '{kind}' %}}"
        f"<|{kind}|>{{% endfor %}}{{% endfor %}}"
        for kind in kinds
    )
    source = by_kind + (
        "{% for m in messages %}{% for c in m.content if c.type == 'text' %}{{ c.text }}"
        "{% endfor %}{% endfor %}"
    )
    assert encoded(source, user(SOUND, ONE, "x", SOUND, TWO))[1] == [1, 3, 0, 2]


def test_system_messages_with_media_that_move_to_the_front_keep_their_items() -> None:
    late = Message("system", (Text("s"), TWO))
    refusal = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('a system message must be the first') }}{% endif %}{% endfor %}"
    )
    source = refusal + RESULTS.replace("<image>", IMAGE)
    assert encoded(source, user("a", ONE), late, user("b"))[1] == [1, 0]


def test_a_placeholder_that_is_no_token_of_its_own_has_a_slot_without_tokens() -> None:
    source = CHATML
    chat = template(source, audio="<audio>").encode(TOKENIZER, [user("x", SOUND, "y")])
    (slot,) = chat.slots
    assert slot.length == 0
    before, after = chat.token_ids[: slot.start], chat.token_ids[slot.start :]
    assert TOKENIZER.decode(before).endswith("x\n") and TOKENIZER.decode(after)[:2] == "\ny"


def test_a_placeholder_of_several_control_tokens_is_replaced_as_a_whole() -> None:
    """Qwen3-VL replaces the tokens around a video's token too."""
    placeholder = f"{START}{IMAGE}{END}"
    chat = template(CHATML, image=placeholder).encode(TOKENIZER, [user(placeholder, ONE, "y")])
    (slot,) = chat.slots
    assert slot.length == 0 and slot.number == 0
    assert not {IMAGE_ID, TOKENIZER.added_tokens[START]} & {*chat.token_ids}
    text = TOKENIZER.decode(chat.token_ids)
    assert text == f"user\n{placeholder}\n\ny\nassistant\n"


@pytest.mark.parametrize("placeholder", [IMAGE, "<audio>"])
def test_users_cannot_forge_a_placeholder(placeholder: str) -> None:
    forged = user(f"{placeholder} x {placeholder}", ONE, f"{placeholder[0]}{placeholder}")
    chat = template(CHATML, image=placeholder).encode(TOKENIZER, [forged])
    assert [slot.number for slot in chat.slots] == [0]
    assert TOKENIZER.decode(chat.token_ids).count(placeholder) == 3
    assert chat.token_ids.count(IMAGE_ID) == (placeholder == IMAGE)


def test_users_cannot_forge_a_mark() -> None:
    with pytest.raises(InvalidRequest, match="U\\+10FFFF"):
        encoded(CHATML, user(ONE, mark_of(0)))
    with pytest.raises(InvalidRequest, match="U\\+10FFFF"):
        encoded(CHATML, user(ONE, mark_of(7)))
    assert encoded(CHATML, user(mark_of(0))) == ([], [])


def test_media_that_the_template_does_not_show_are_refused() -> None:
    source = QWEN2_VL.replace("message.content is string", "message.role == 'assistant'")
    said = Message("assistant", (Text("x"), ONE))
    with pytest.raises(InvalidRequest, match="shows 0 of the 1 media items"):
        encoded(source, user("a"), said, user("b"), image="<|image_pad|>")
