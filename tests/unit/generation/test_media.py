"""Media for a model that reads text only: a tool's are told in words, a user's are refused."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, GenerateRequest, Image, Message, Part, Text, ToolResult
from penstock.generation.prompt.media import without_media

PNG = Image(data=b"\x89PNG", mime_type="image/png")
LEFT_OUT = "[image left out: the model reads text only]"


def parts(*given: Part, role: str = "user") -> tuple[Part, ...]:
    request = GenerateRequest(messages=(Message(role, given, "n"),))  # type: ignore[arg-type]
    (message,) = without_media(request).messages or ()
    assert (message.role, message.name) == (role, "n")
    return message.parts


def test_a_request_without_media_stays_what_it_is() -> None:
    request = GenerateRequest(messages=(Message("user", (Text("hi"),)),))
    assert without_media(request) is request
    prompt = GenerateRequest(prompt="hi")
    assert without_media(prompt) is prompt


@pytest.mark.parametrize("role", ["tool", "user"])
def test_what_came_with_a_result_is_told_in_it(role: str) -> None:
    result = ToolResult("c", "read", "f", True)
    told = ToolResult("c", f"read\n{LEFT_OUT}", "f", True)
    assert parts(result, PNG, Text("go on"), role=role) == (told, Text("go on"))
    assert parts(ToolResult("c", ""), PNG) == (ToolResult("c", LEFT_OUT),)


def test_several_of_several_results() -> None:
    first, second = ToolResult("a", "1"), ToolResult("b", "2")
    assert parts(first, PNG, PNG, second, Audio(data=b"x")) == (
        ToolResult("a", f"1\n{LEFT_OUT}\n{LEFT_OUT}"),
        ToolResult("b", "2\n[audio left out: the model reads text only]"),
    )


@pytest.mark.parametrize("given", [(PNG,), (Text("x"), PNG), (ToolResult("c", ""), Text("x"), PNG)])
def test_what_the_user_sent_is_refused_by_its_place(given: tuple[Part, ...]) -> None:
    part_paths = (tuple(f"messages[4].content[{i}]" for i in range(len(given))),)
    request = GenerateRequest(messages=(Message("user", given),), part_paths=part_paths)
    with pytest.raises(InvalidRequest, match="could not process image") as caught:
        without_media(request)
    assert caught.value.field == f"messages[4].content[{len(given) - 1}]"
