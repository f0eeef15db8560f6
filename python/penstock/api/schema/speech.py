"""`POST /v1/audio/speech`: the request. The answer is audio."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.dialog.ranges import MAX_SPEECH_CHARS, MAX_SPEED, MIN_SPEED


class SpeechRequest(Struct, kw_only=True):
    """A text to speak."""

    input: Annotated[str, Meta(min_length=1, max_length=MAX_SPEECH_CHARS)]
    model: f.Model | None = None
    response_format: (
        Annotated[
            Literal["wav", "pcm"],
            Meta(
                description="`pcm`: signed 16-bit little-endian samples. Absent: `wav`.",
                extra={"code": f.UNSUPPORTED},
            ),
        ]
        | None
    ) = None
    voice: Annotated[
        Any,
        Meta(description="A voice of the model. Any other value selects its default voice."),
    ] = None
    speed: Annotated[
        Any,
        Meta(
            description=f"A number, limited to {MIN_SPEED} to {MAX_SPEED}. Any other value is 1.",
        ),
    ] = None
    stream_format: (
        Annotated[
            Literal["audio"],
            Meta(
                description="The audio is always streamed as it is made.",
                extra={"code": f.UNSUPPORTED},
            ),
        ]
        | None
    ) = None
    instructions: f.Ignored = None
