"""`content` of a chat message: a string, null, or an array of parts."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.request_fields.fields import Fields, one_of, shown
from penstock.api.codecs.request_fields.media import Source, decode_data, decode_file, decode_source
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.dialog import Audio, Image, Part, Text, Video
from penstock.dialog.message import Role

USER_PARTS: Final = ("text", "image_url", "audio_url", "input_audio", "video_url", "file")
ASSISTANT_PARTS: Final = ("text", "refusal")
OTHER_PARTS: Final = ("text",)
AUDIO_TYPES: Final = {"mp3": "audio/mpeg"}


def decode_content(
    entry: Fields, role: Role, part_paths: PartPaths | None = None
) -> tuple[Part, ...]:
    """The parts of a message of that role. Media and files come from users alone; `part_paths`
    learns
    where they are."""
    value = entry.get("content")
    if value is None:
        return ()
    if type(value) is str:
        return (Text(value),)
    if type(value) is not list:
        entry.refuse_type("content", "a string, null or an array of parts")
    allowed = {"user": USER_PARTS, "assistant": ASSISTANT_PARTS}.get(role, OTHER_PARTS)
    parts = []
    for part in entry.objects("content"):
        parts.append(_part(part, allowed))
        if part_paths is not None:
            part_paths.note(parts[-1], f"{part.path}.{part.get('type')}")
    return tuple(parts)


def decode_text(entry: Fields) -> str:
    """The content of a result, which is text alone."""
    return "".join(p.text for p in decode_content(entry, "tool") if isinstance(p, Text))


def _part(part: Fields, allowed: tuple[str, ...]) -> Part:
    kind = part.required_string("type")
    if kind == "file_url":
        part.refuse(
            "type",
            'cannot be "file_url" on chat completions; send "file" with `file_data` or `file_id`',
            code="unsupported_value",
        )
    if kind not in allowed:
        part.refuse(
            "type", f"must be {one_of(allowed)} here, not {shown(kind)}", code="unsupported_value"
        )
    match kind:
        case "text" | "refusal":
            return Text(part.required_string(kind))
        case "image_url":
            return Image(*_source(part, kind))
        case "audio_url":
            return Audio(*_source(part, kind))
        case "video_url":
            return Video(*_source(part, kind))
        case "input_audio":
            return _input_audio(part)
        case _:
            return _file(part)


def _source(part: Fields, key: str) -> Source:
    """An object with a `url`, or the URL itself."""
    if type(part.get(key)) is str:
        return decode_source(part, key)
    return decode_source(part.required_object(key), "url")


def _input_audio(part: Fields) -> Audio:
    audio = part.required_object("input_audio")
    form = audio.required_string("format").lower()
    if not form.isalnum():
        audio.refuse("format", "must be the name of a format: wav, mp3")
    data, _ = decode_data(audio, "data")
    return Audio(data=data, mime_type=AUDIO_TYPES.get(form, f"audio/{form}"))


def _file(part: Fields) -> Part:
    file = part.required_object("file")
    if file.get("file_url") is not None:
        file.refuse(
            "file_url",
            "is not supported on chat completions; send `file_data` or `file_id`",
            code="unsupported_value",
        )
    return decode_file(file)
