"""Streams of every dialect from the engine's socket to the client's, over scripted tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_client_disconnects import LETTERS, SteppedSource, stack

TOKENS = 40
SAID = "".join(chr(LETTERS[k % len(LETTERS)]) for k in range(TOKENS))
HI = [{"role": "user", "content": "hi"}]
ASKED = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": "hi", "max_tokens": TOKENS},
    "/v1/messages": {"model": "default", "messages": HI, "max_tokens": TOKENS},
    "/v1/responses": {"input": "hi", "max_output_tokens": TOKENS, "store": False},
}


def text_of(event: dict) -> str:
    """Return the text in a frame of any dialect."""
    for choice in event.get("choices", ()):
        return choice.get("text") or choice.get("delta", {}).get("content") or ""
    delta = event.get("delta", "")
    return delta if isinstance(delta, str) else delta.get("text", "")


@pytest.mark.parametrize("path", ASKED)
async def test_every_token_of_a_stream_is_sent_and_measured(path: str, tmp_path: Path) -> None:
    source = SteppedSource()
    async with stack(tmp_path / "s", source) as served:
        asking = served.serving.http.stream("POST", path, json={**ASKED[path], "stream": True})
        text = ""
        source.permits.release()  # the head comes with the first token
        async with asking as answer:
            pieces = answer.aiter_text()
            while len(said := _said(text)) < TOKENS:
                if source.steps == len(said):
                    source.permits.release()
                text += await anext(pieces)
            text += "".join([piece async for piece in pieces])
        events = _events(text)
        assert said == SAID
        numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
        assert numbers == list(range(len(numbers)))
        if path == "/v1/responses":
            assert events[-1]["response"]["output_text"] == SAID
        await served.until(lambda: served.client.in_flight == 0)
        metrics = served.serving.services.metrics
        assert metrics is not None
        (between,) = metrics.inter_token.collect()
        counts = [s.value for s in between.samples if s.name.endswith("_count")]
        assert counts == [TOKENS - 1]


def _said(text: str) -> str:
    return "".join(map(text_of, _events(text)))


def _events(text: str) -> list[dict]:
    """Return the complete frames of a stream so far, without its end mark."""
    whole = text[: text.rfind("\n\n") + 1]
    data = [line[6:] for line in whole.split("\n") if line.startswith("data: {")]
    return [json.loads(each) for each in data]
