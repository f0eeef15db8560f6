"""Decodes the `content` of a chat message, a string or an array, into parts of the dialog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.api.codecs.request_fields.media import Source, base_name, decode_data, decode_source
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.refusals import refuse, refuse_missing
from penstock.api.schema.chat import request as r
from penstock.dialog import Audio, File, Image, Part, Text, Video

AUDIO_TYPES: Final = {"mp3": "audio/mpeg"}


def decode_text(content: str | Sequence[r.TextPart | r.RefusalPart]) -> tuple[Part, ...]:
    """Return the text parts of `content` that contains only text and refusals."""
    if isinstance(content, str):
        return (Text(content),)
    return tuple(Text(p.text if isinstance(p, r.TextPart) else p.refusal) for p in content)


def decode_content(
    content: str | Sequence[r.UserPart], path: str, part_paths: PartPaths
) -> tuple[Part, ...]:
    """Return the parts of a user message. `path`: the path of `content` in the body. The paths of
    media and files are noted in `part_paths`."""
    if isinstance(content, str):
        return (Text(content),)
    parts: list[Part] = []
    for index, part in enumerate(content):
        if isinstance(part, r.TextPart):
            parts.append(Text(part.text))
            continue
        place = f"{path}[{index}].{part.__struct_config__.tag}"
        parts.append(_part(part, place))
        part_paths.note(parts[-1], place)
    return tuple(parts)


def _part(
    part: r.ImagePart | r.AudioPart | r.VideoPart | r.InputAudioPart | r.FilePart, path: str
) -> Part:
    """Return a media or file part. `path`: the path of the object with its URL or data."""
    match part:
        case r.ImagePart():
            return Image(*_source(part.image_url, path))
        case r.AudioPart():
            return Audio(*_source(part.audio_url, path))
        case r.VideoPart():
            return Video(*_source(part.video_url, path))
        case r.InputAudioPart():
            return _input_audio(part.input_audio, path)
        case r.FilePart():
            return _file(part.file, path)


def _source(source: str | r.ChatImage | r.MediaAddress, path: str) -> Source:
    """Decode a URL, given as a string or as an object with `url`."""
    if isinstance(source, str):
        return decode_source(source, path)
    return decode_source(source.url, f"{path}.url")


def _input_audio(audio: r.ChatAudio, path: str) -> Audio:
    form = audio.format.lower()
    if not form.isalnum():
        refuse(f"{path}.format", "must be the name of a format: wav, mp3")
    data, _ = decode_data(audio.data, f"{path}.data")
    return Audio(data=data, mime_type=AUDIO_TYPES.get(form, f"audio/{form}"))


def _file(file: r.ChatFile, path: str) -> File:
    """Return a file part: a stored file by id, or a file with its content."""
    name = base_name(file.filename) if file.filename is not None else None
    path = f"{path}.file_data"
    if file.file_data is None:
        if file.file_id is None:
            refuse_missing(path, "base64 or a data: URL, or a `file_id` in its place")
        return File(file_id=file.file_id, name=name)
    if file.file_id is not None:
        refuse(path, "cannot be used together with `file_id`")
    data, mime_type = decode_data(file.file_data, path)
    return File(name=name, data=data, mime_type=mime_type)
