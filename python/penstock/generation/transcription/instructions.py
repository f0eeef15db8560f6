"""Reads what a request asks of a transcript."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import Audio, File, GenerateRequest, Image, Text, Video
from penstock.generation.request_checks import check_request
from penstock.generation.transcription.languages import LANGUAGE_CODES

Task = Literal["transcribe", "translate"]

_LINE: Final = re.compile(r"\s*(language|task|prompt|timestamps)\s*:\s*(.*?)\s*", re.IGNORECASE)
_FLAGS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Instructions:
    """The settings of a transcript.

    - `language`: language code, None to detect it in each recording.
    - `task`: "translate" writes English.
    - `prompt`: text that precedes the recording: names and style.
    - `timestamps`: each segment is a line that starts with its times.
    """

    language: str | None = None
    task: Task = "transcribe"
    prompt: str = ""
    timestamps: bool = False


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """A request that a transcriber can answer.

    - `request`: with only the messages after the model's last answer.
    - `recordings`: the audio parts of these messages, in order.
    """

    request: GenerateRequest
    recordings: tuple[Audio, ...]
    instructions: Instructions


def read_request(request: GenerateRequest, languages: Mapping[str, int]) -> TranscriptionRequest:
    """Return the recordings and the instructions of a request. `languages`: codes of the languages
    that the model knows besides English; empty if none.

    Texts of the messages may have lines "language: de", "task: translate", "prompt: ..." and
    "timestamps: true"; other text is ignored, since the model follows no instructions. Raises
    InvalidRequest that names a field that a transcriber does not support, and a request without
    audio.
    """
    check_request(request)
    _check_supported(request)
    messages = request.messages or ()
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    shown = messages[answers[-1] + 1 :] if answers else messages
    kept = msgspec.structs.replace(request, messages=shown)
    recordings = _recordings(kept)
    if not recordings:
        raise InvalidRequest(
            "this model transcribes speech; send a message with an audio part",
            field="messages",
            code="missing_audio",
        )
    systems = [m for m in messages if m.role in ("system", "developer") and m not in shown]
    texts = [p.text for m in (*systems, *shown) for p in m.parts if isinstance(p, Text)]
    return TranscriptionRequest(kept, recordings, _instructions(texts, languages))


def _check_supported(request: GenerateRequest) -> None:
    refused = {
        "prompt": request.prompt is not None or bool(request.prompts),
        "adapter": request.adapter is not None,
        "n": request.n > 1,
        "best_of": (request.best_of or 1) > 1,
        "logprobs": request.top_logprobs is not None,
        "response_format": request.constraint is not None,
        "tool_choice": request.tool_policy.mode == "required",
        "messages": bool(request.answer_prefix),
    }
    for field, is_refused in refused.items():
        if is_refused:
            raise InvalidRequest(
                f"{field} cannot be used: this model transcribes speech",
                field=field,
                code="unsupported_value",
            )


def _recordings(request: GenerateRequest) -> tuple[Audio, ...]:
    found: list[Audio] = []
    for index, message in enumerate(request.messages or ()):
        for number, part in enumerate(message.parts):
            if isinstance(part, Audio):
                found.append(part)
            elif isinstance(part, Image | Video | File):
                place = request.part_path(index, number)
                raise InvalidRequest(
                    f"`{place}`: could not process {type(part).__name__.lower()}: the model reads"
                    " audio only",
                    field=place,
                    code="unsupported_value",
                )
    return tuple(found)


def _instructions(texts: list[str], languages: Mapping[str, int]) -> Instructions:
    lines = (line for text in texts for line in text.splitlines())
    found = {match[1].lower(): match[2] for line in lines if (match := _LINE.fullmatch(line))}
    task = found.get("task", "transcribe").lower()
    if task not in ("transcribe", "translate"):
        raise _invalid("task", task, "transcribe or translate")
    timestamps = _FLAGS.get(found.get("timestamps", "false").lower())
    if timestamps is None:
        raise _invalid("timestamps", found["timestamps"], "true or false")
    if task == "translate" and not languages:
        raise InvalidRequest(
            "task: this model knows only English and does not translate", field="messages"
        )
    return Instructions(
        language=_language(found.get("language"), languages),
        task="translate" if task == "translate" else "transcribe",
        prompt=found.get("prompt", ""),
        timestamps=timestamps,
    )


def _language(name: str | None, languages: Mapping[str, int]) -> str | None:
    if name is None or name.lower() in ("", "auto"):
        return None
    code = LANGUAGE_CODES.get(name.lower(), name.lower())
    if code not in (languages or ("en",)):
        known = ", ".join(sorted(languages)) or "en"
        raise _invalid("language", name, f"one of {known}")
    return code


def _invalid(key: str, value: str, expected: str) -> InvalidRequest:
    return InvalidRequest(
        f"the line `{key}: {value[:40]}` in a text is not valid: it must be {expected}",
        field="messages",
    )
