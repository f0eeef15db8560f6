"""The `content` of an input item -> parts."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.request_fields.fields import Fields, shown
from penstock.api.codecs.request_fields.media import (
    decode_address,
    decode_data,
    decode_file_id,
    decode_file_name,
    decode_source,
)
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.dialog import Audio, File, Image, Part, Text

TEXT_PARTS: Final = ("input_text", "output_text", "text")
PARTS: Final = (*TEXT_PARTS, "refusal", "input_image", "image_url", "input_audio", "input_file")
DETAILS: Final = ("auto", "low", "high", "original")
AUDIO_FORMAT_CHARS: Final = 16


def decode_content(item: Fields, key: str, part_paths: PartPaths) -> tuple[Part, ...]:
    """A string or an array of parts. The chat API's own parts are taken too. `part_paths` learns
    where
    they are."""
    value = item.get(key)
    if type(value) is str:
        return (Text(value),)
    if value is None:
        item.refuse_missing(key, "a string or an array of parts")
    if type(value) is not list:
        item.refuse_type(key, "a string or an array of parts")
    parts = []
    for entry in item.objects(key):
        parts.append(_part(entry))
        part_paths.note(parts[-1], entry.path)
    return tuple(parts)


def _part(part: Fields) -> Part:
    part.required_string("type")
    kind = part.choice("type", PARTS)
    match kind:
        case "input_text" | "output_text" | "text":
            _check_annotations(part)
            return Text(part.required_string("text"))
        case "refusal":
            return Text(part.required_string("refusal"))
        case "input_file":
            return _file(part)
        case "input_audio":
            return _audio(part)
        case _:
            return _image(part)


def _image(part: Fields) -> Image | File:
    """By address or data URL (`image_url`, nested as in chat or not), bytes, or id of a file."""
    part.choice("detail", DETAILS)
    given = _only_one(part, ("image_url", "image_data", "file_id"))
    if given == "file_id":
        return File(file_id=decode_file_id(part))
    if given == "image_data":
        data, mime_type = decode_data(part, "image_data")
        return Image(data=data, mime_type=mime_type)
    if type(part.get("image_url")) is dict:
        nested = part.required_object("image_url")
        nested.choice("detail", DETAILS)
        return Image(*decode_source(nested, "url"))
    return Image(*decode_source(part, "image_url"))


def _audio(part: Fields) -> Audio:
    owner = part.object("input_audio") or part
    form = owner.required_string("format")
    if not (form.isalnum() and form.isascii() and len(form) <= AUDIO_FORMAT_CHARS):
        owner.refuse("format", f"must name a format of sound, not {shown(form)}")
    data, _ = decode_data(owner, "data")
    return Audio(data=data, mime_type=f"audio/{form.lower()}")


def _file(part: Fields) -> File:
    """Exactly one of `file_id`, `file_data` and `file_url`."""
    name = decode_file_name(part, "filename")
    match _only_one(part, ("file_id", "file_data", "file_url")):
        case "file_id":
            return File(file_id=decode_file_id(part), name=name)
        case "file_url":
            return File(url=decode_address(part, "file_url"), name=name)
        case _:
            data, mime_type = decode_data(part, "file_data")
            return File(data=data, name=name, mime_type=mime_type)


def _only_one(part: Fields, keys: tuple[str, ...]) -> str:
    given = [key for key in keys if part.get(key) is not None]
    if not given:
        part.refuse_missing(keys[0], "or one of " + ", ".join(f"`{key}`" for key in keys[1:]))
    if len(given) > 1:
        part.refuse(given[1], f"cannot be used together with `{given[0]}`")
    return given[0]


def _check_annotations(part: Fields) -> None:
    """What earlier answers cited, in this server's form or OpenAI's; the model is not shown
    it."""
    for annotation in part.objects("annotations"):
        annotation.required_string("type")
        for key in ("start_index", "end_index", "index"):
            annotation.integer(key, 0)
        for key in ("text", "file_id", "filename", "container_id", "url", "title"):
            annotation.string(key)
        for key in ("file_citation", "file_path"):
            cited = annotation.object(key)
            if cited is not None:
                cited.required_string("file_id")
                cited.string("quote")
        cited_url = annotation.object("url_citation")
        if cited_url is not None:
            cited_url.required_string("url")
            cited_url.string("title")
