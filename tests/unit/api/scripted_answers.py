"""A chat request, and scripts of answers to it that fail, or wait for the test."""

from __future__ import annotations

from penstock.dialog import PartStarted, RunStarted, TextDelta
from tests.support.servers.http_server import CREATED, MODEL, spoken

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def raising(error, *, after_text=False):
    def script(request):
        yield RunStarted(MODEL, CREATED, 1)
        if after_text:
            yield PartStarted(0, 0, "text")
            yield TextDelta(0, 0, "He")
        yield error

    return script


def waiting(gate, *, after_text=True):
    def script(request):
        steps = iter(spoken("Hel", "lo")(request))
        yield next(steps)
        if after_text:
            yield next(steps)
            yield next(steps)
        yield gate
        yield from steps

    return script
