"""`python -m bench.agent.calling_engine SOCKET STAMPS`: a scripted engine that calls a tool.

A request whose prompt contains the script's marker gets the tool call at once, in every round. All
other requests get one token per step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.harness.scripted_engine import Script, ScriptedCore, main
from penstock.engine.types import TokenDelta, TokenOutput, TokenRequest


class CallingCore(ScriptedCore):
    """A scripted core that answers marked prompts with a tool call."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._callers: list[str] = []

    def submit(self, request: TokenRequest) -> None:
        if _contains(request.token_ids, self.script.call.marker):
            self._callers.append(request.id)
        else:
            super().submit(request)

    @property
    def has_work(self) -> bool:
        return bool(self._open or self._callers)

    def step(self) -> list[TokenOutput]:
        outputs = super().step()
        tokens = tuple(map(TokenDelta, self.script.call.call))
        for request_id in self._callers:
            outputs.append(TokenOutput(request_id, tokens, time.monotonic(), 0, "stop"))
        self._callers.clear()
        return outputs


def _contains(tokens: tuple[int, ...], marker: tuple[int, ...]) -> bool:
    size = len(marker)
    return any(tokens[k : k + size] == marker for k in range(len(tokens) - size, -1, -1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), CallingCore)
