"""Writes the JSON and SSE chunks that chat and text completions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock.api.codecs.dialect import AnswerIdentity
from penstock.api.codecs.openai_envelope import DONE, usage_object
from penstock.dialog import RunEnded, RunStarted
from penstock.dialog.fold import Answer

NO_EXTENSIONS: Final[Mapping[str, Any]] = {}
PLAIN_TAIL: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


class ChunkWriter:
    """Writes the SSE chunks of one stream. The start of a chunk's JSON is built once per stream;
    only the content of a choice (`"delta":{...}` or `"text":"..."`) is built for each token.

    The chunk with the finish reason of the choice that ends last also has the usage. It is
    therefore held back until RunEnded, which follows at once.
    """

    def __init__(self, identity: AnswerIdentity, kind: str, n: int) -> None:
        self._identity = identity
        self._kind = kind
        self._n = n
        self._head = b""
        self._ended: set[int] = set()
        self._held = b""

    def start(self, event: RunStarted) -> None:
        """Build the start of all chunks. Must be called before the first chunk."""
        envelope = orjson.dumps(
            {
                "id": self._identity.id,
                "object": self._kind,
                "created": event.created,
                "model": event.model,
                "system_fingerprint": event.fingerprint,
                **generation_field(event.adapter_revision),
            }
        )
        self._head = b"data: " + envelope[:-1] + b',"choices":[{"index":'

    def chunk(
        self, choice: int, content: bytes, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        """Return the chunk of one choice. `content` is the JSON of its delta or text; `logprobs`
        and `finish` are JSON values."""
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (
            self._head,
            choice,
            content,
            logprobs,
            finish,
        )

    def around(self, choice: int, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that precede and follow a text in all chunks of a choice without
        logprobs. `before`, `after`: the JSON around the text inside the choice."""
        return b"%b%d,%b" % (self._head, choice, before), after + PLAIN_TAIL

    def end_choice(self, choice: int, content: bytes, finish: str) -> bytes:
        """Return the chunk with the finish reason of a choice. For the choice that ends last,
        return b"" and keep the chunk for `end`."""
        self._ended.add(choice)
        chunk = self.chunk(choice, content, finish=orjson.dumps(finish))
        if len(self._ended) < self._n:
            return chunk
        self._held = chunk
        return b""

    def end(self, event: RunEnded, session: str | None = None) -> bytes:
        """Return the chunk that `end_choice` held back, with the usage and session added, and
        `[DONE]`."""
        if not self._held:
            return DONE
        last = orjson.dumps({"usage": usage_object(event.usage), **session_field(session)})
        return self._held[:-3] + b"," + last[1:] + b"\n\n" + DONE


def session_field(session: str | None) -> dict[str, str]:
    """Return the field `session_id`, or {} if there is no session."""
    return {} if session is None else {"session_id": session}


def generation_field(generation: str | None) -> dict[str, str]:
    """Return the field `adapter_generation`, or {} if the answer used no adapter."""
    return {} if generation is None else {"adapter_generation": generation}


def answer_json(
    identity: AnswerIdentity,
    kind: str,
    answer: Answer,
    choices: list[dict[str, Any]],
    extensions: Mapping[str, Any] = NO_EXTENSIONS,
) -> bytes:
    """Return the JSON of a complete answer. `kind`: the value of `object`; `extensions`: further
    fields."""
    return orjson.dumps(
        {
            "id": identity.id,
            "object": kind,
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": answer.fingerprint,
            "choices": choices,
            "usage": usage_object(answer.usage),
            **generation_field(answer.adapter_revision),
            **extensions,
        }
    )
