"""Media that the model does not read: notes in tool results, and refused in other messages."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, File, GenerateRequest, Image, Message, Part, Text, ToolResult
from penstock.generation.media.readable import with_readable_media

PNG = Image(data=b"\x89PNG", mime_type="image/png")
LEFT_OUT = "[image left out: the model reads text only]"


def parts(*given: Part, role: str = "user") -> tuple[Part, ...]:
    request = GenerateRequest(messages=(Message(role, given, "n"),))  # type: ignore[arg-type]
    (message,) = with_readable_media(request, ()).messages or ()
    assert (message.role, message.name) == (role, "n")
    return message.parts


def test_a_request_without_media_stays_what_it_is() -> None:
    request = GenerateRequest(messages=(Message("user", (Text("hi"),)),))
    assert with_readable_media(request, ()) is request
    prompt = GenerateRequest(prompt="hi")
    assert with_readable_media(prompt, ()) is prompt


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
        with_readable_media(request, ())
    assert caught.value.field == f"messages[4].content[{len(given) - 1}]"


SOUND = Audio(data=b"x")


def test_media_of_a_kind_that_the_model_reads_stay() -> None:
    request = GenerateRequest(
        messages=(
            Message(
                "user",
                (Text("a"), PNG, ToolResult("c", "")),
            ),
        )
    )
    assert with_readable_media(request, ("image",)) is request


def test_other_kinds_are_refused_with_the_kinds_that_the_model_reads() -> None:
    request = GenerateRequest(messages=(Message("user", (PNG, SOUND)),))
    with pytest.raises(InvalidRequest, match=r"audio: the model reads text and images, no audio"):
        with_readable_media(request, ("image",))
    with pytest.raises(InvalidRequest, match=r"image: the model reads text, audio and video, no"):
        with_readable_media(request, ("audio", "video"))
    with pytest.raises(InvalidRequest, match=r"file: the model reads text and images, no files"):
        files = GenerateRequest(messages=(Message("user", (File(file_id="f"),)),))
        with_readable_media(files, ("image",))


def test_only_the_kinds_that_are_not_read_become_notes_of_a_result() -> None:
    given = Message("tool", (ToolResult("c", "read"), PNG, SOUND, PNG))
    request = GenerateRequest(messages=(given,))
    (message,) = with_readable_media(request, ("image",)).messages or ()
    told = ToolResult("c", "read\n[audio left out: the model reads text and images, no audio]")
    assert message.parts == (told, PNG, PNG)
