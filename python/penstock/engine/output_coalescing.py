"""Coalesces the outputs of requests that are not streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.types import StepOutput, TokenOutput, TokenRequest

MAX_COALESCED: Final = 256
"""Most outputs of one answer that are held back, to limit memory."""


def coalesced(outputs: Sequence[TokenOutput]) -> TokenOutput:
    """Merge the outputs of one request into one: the last output, with the tokens of all of
    them."""
    last = outputs[-1]
    tokens = tuple([token for output in outputs for token in output.tokens])
    prompt = tuple([token for output in outputs for token in output.prompt])
    first = next((output for output in outputs if output.tokens), last)
    return TokenOutput(
        id=last.id,
        tokens=tokens,
        step_time_s=last.step_time_s,
        cached_tokens=outputs[0].cached_tokens,
        finish=last.finish,
        error=last.error,
        prompt=prompt,
        first_step_time_s=first.step_time_s
        if first.first_step_time_s is None
        else first.first_step_time_s,
    )


class OutputCoalescer:
    """Holds back the outputs of requests whose callers read only the whole answer
    (TokenRequest.not_streamed), so that these requests cost almost nothing per step."""

    def __init__(self) -> None:
        self._held: dict[str, list[TokenOutput]] = {}

    def add(self, request: TokenRequest) -> None:
        """Register a request. Call this before the first output of the request."""
        if request.not_streamed:
            self._held[request.id] = []

    def forget(self, request_id: str) -> None:
        """Drop a request and its outputs. May be repeated."""
        self._held.pop(request_id, None)

    def coalesce(self, outputs: Sequence[StepOutput]) -> Sequence[StepOutput]:
        """Return the outputs to send after a step that produced `outputs`. Hold back the rest."""
        if not self._held:
            return outputs
        passed: list[StepOutput] = []
        for output in outputs:
            if isinstance(output, TokenOutput) and output.id in self._held:
                passed += self._one(output)
            else:
                passed.append(output)
        return passed

    def _one(self, output: TokenOutput) -> list[TokenOutput]:
        held = self._held[output.id]
        if output.finish is not None:
            del self._held[output.id]
            if output.finish in ("error", "abort"):  # the tokens before the failure come first
                return [*([coalesced(held)] if held else ()), output]
        elif not output.tokens:
            return [output]  # the output has prompt tokens only
        held.append(output)
        if output.finish is None and len(held) < MAX_COALESCED:
            return []
        whole = held[0] if len(held) == 1 else coalesced(held)
        held.clear()
        return [whole]
