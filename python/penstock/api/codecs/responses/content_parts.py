"""Decodes the `content` of an input item into parts of the dialog."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.codecs.request_fields.media import (
    base_name,
    decode_address,
    decode_data,
    decode_source,
)
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.refusals import refuse, refuse_missing
from penstock.api.schema.chat.request import RefusalPart
from penstock.api.schema.responses import input_items as i
from penstock.dialog import Audio, File, Image, Part, Text


def decode_content(
    content: str | Sequence[i.InputPart], path: str, part_paths: PartPaths
) -> tuple[Part, ...]:
    """Return the parts of a string or array; parts in the chat API's form are accepted too. `path`:
    the path of `content` in the body. The paths of media and files are noted in `part_paths`."""
    if isinstance(content, str):
        return (Text(content),)
    parts = []
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        parts.append(_part(part, place))
        part_paths.note(parts[-1], place)
    return tuple(parts)


def _part(part: i.InputPart, path: str) -> Part:
    match part:
        case i.InputText() | i.EarlierText() | i.PlainText():
            return Text(part.text)
        case RefusalPart():
            return Text(part.refusal)
        case i.InputFile():
            return _file(part, path)
        case i.InputAudio():
            return _audio(part, path)
        case i.InputImage() | i.ImageUrl():
            return _image(part, path)
    raise AssertionError(part)


def _image(part: i.InputImage | i.ImageUrl, path: str) -> Image | File:
    """Return an image given by URL, data: URL or base64, or a stored file given by id."""
    _check_one(part, ("image_url", "image_data", "file_id"), path)
    if part.file_id is not None:
        return File(file_id=part.file_id)
    if part.image_data is not None:
        data, mime_type = decode_data(part.image_data, f"{path}.image_data")
        return Image(data=data, mime_type=mime_type)
    if isinstance(part.image_url, i.ImageAddress):
        return Image(*decode_source(part.image_url.url, f"{path}.image_url.url"))
    return Image(*decode_source(part.image_url or "", f"{path}.image_url"))


def _audio(part: i.InputAudio, path: str) -> Audio:
    """Return an audio part. `data` and `format` may be nested under `input_audio`, as in the chat
    API."""
    owner: i.InputAudio | i.AudioData = part
    if part.input_audio is not None:
        owner, path = part.input_audio, f"{path}.input_audio"
    if owner.format is None:
        refuse_missing(f"{path}.format", "the name of an audio format: wav, mp3")
    if owner.data is None:
        refuse_missing(f"{path}.data", "base64 or a data: URL")
    data, _ = decode_data(owner.data, f"{path}.data")
    return Audio(data=data, mime_type=f"audio/{owner.format.lower()}")


def _file(part: i.InputFile, path: str) -> File:
    """Return a file given by id, URL or content."""
    _check_one(part, ("file_id", "file_data", "file_url"), path)
    name = base_name(part.filename) if part.filename is not None else None
    if part.file_id is not None:
        return File(file_id=part.file_id, name=name)
    if part.file_url is not None:
        return File(url=decode_address(part.file_url, f"{path}.file_url"), name=name)
    data, mime_type = decode_data(part.file_data or "", f"{path}.file_data")
    return File(data=data, name=name, mime_type=mime_type)


def _check_one(part: object, names: tuple[str, ...], path: str) -> None:
    """Raise InvalidRequest unless exactly one of the fields `names` is present."""
    given = [name for name in names if getattr(part, name) is not None]
    if not given:
        others = ", ".join(f"`{name}`" for name in names[1:])
        refuse(
            f"{path}.{names[0]}",
            f"is required, or one of {others}",
            code="missing_required_parameter",
        )
    if len(given) > 1:
        refuse(f"{path}.{given[1]}", f"cannot be used together with `{given[0]}`")
