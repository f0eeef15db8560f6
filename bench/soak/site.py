"""One visit of a client to the server, and the judgment of what it is answered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from bench.soak.wire import Answer, Body, Malformed, Step, answers, converse, request

TIMEOUT_S = 60.0
BUSY = (429,)
SECRETS = (b"Traceback", b"/python", b'.py"', b"/site-packages/", b"msgspec", b"0x7f")


class Wrong(Exception):
    """The server did what it must not."""


class Disturbed(Exception):
    """The engine was down meanwhile, or the server was busy: no verdict."""


@dataclass
class Faults:
    """When engines were killed, and when all of them answered again (None: not yet)."""

    windows: list[tuple[float, float | None]] = field(default_factory=list)

    def begin(self) -> None:
        self.windows.append((time.monotonic(), None))

    def end(self) -> None:
        began, _ = self.windows[-1]
        self.windows[-1] = (began, time.monotonic())

    def since(self, began: float) -> bool:
        """Whether an engine was down at some time since then."""
        return any(end is None or end >= began for _, end in self.windows)


@dataclass
class Site:
    """A server under siege. `statuses` counts what it answered; 0: nothing."""

    port: int
    faults: Faults = field(default_factory=Faults)
    statuses: Counter[int] = field(default_factory=Counter)

    async def ask(
        self,
        method: str,
        path: str,
        body: Body = b"",
        expect: Collection[int] = (200,),
        headers: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """The answer to one well-formed request. Raises Wrong, Disturbed."""
        began = time.monotonic()
        raw = await converse(self.port, (request(method, path, body, headers or {}),), timeout_s)
        found = self.judge(raw, began)
        asked = f"{method} {path}"
        if len(found) != 1:
            self._disturbed(began)
            raise Wrong(f"{asked}: {len(found)} answers: {raw[:200]!r}")
        (answer,) = found
        if not answer.whole:
            self._disturbed(began)
            raise Wrong(f"{asked}: cut after {len(raw)} bytes, {time.monotonic() - began:.1f} s")
        if answer.status in BUSY and answer.status not in expect:
            raise Disturbed
        if answer.status not in expect:
            self._disturbed(began)
            raise Wrong(f"{asked}: {answer.status} {answer.body[:300]!r} to {_shown(body)}")
        if b'"engine_fault"' in answer.body or b'"code":"unavailable"' in answer.body:
            self._disturbed(began)
            raise Wrong(f"{asked}: {answer.body[-300:]!r}")
        return answer

    async def talk(self, *steps: Step, timeout_s: float = TIMEOUT_S) -> list[Answer]:
        """What the server said to anything. Raises Wrong, Disturbed."""
        began = time.monotonic()
        return self.judge(await converse(self.port, steps, timeout_s), began)

    def judge(self, raw: bytes, began: float) -> list[Answer]:
        """The answers, none of them a fault of the server's. Raises Wrong, Disturbed."""
        try:
            found = list(answers(raw))
        except Malformed as error:
            raise Wrong(f"not HTTP: {error}") from None
        self.statuses.update([answer.status for answer in found] or [0])
        for answer in found:
            if answer.status >= 500:
                self._disturbed(began)
                raise Wrong(f"{answer.status} {answer.body[:300]!r}")
            if answer.status >= 400:
                _check_refusal(answer)
        return found

    def _disturbed(self, began: float) -> None:
        if self.faults.since(began):
            raise Disturbed


def _check_refusal(answer: Answer) -> None:
    """A refusal says what is wrong, in the form that all have, and tells nothing of the inside."""
    if any(secret in answer.body for secret in SECRETS):
        raise Wrong(f"a refusal tells too much: {answer.body[:300]!r}")
    if not answer.whole:
        return
    if answer.headers.get("content-type") != "application/json":
        raise Wrong(f"{answer.status} without JSON: {answer.body[:100]!r}")
    body = answer.json()
    if "status" not in body and not body["error"]["message"]:
        raise Wrong(f"{answer.status} without a message")


def _shown(body: Body) -> str:
    text = repr(body)
    return text if len(text) < 400 else text[:400] + "..."
