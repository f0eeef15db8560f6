"""Visits of clients to the server, and the judgment of what they are answered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NoReturn

from bench.soak.raw_http import Answer, Body, Malformed, Step, answers, converse, request

TIMEOUT_S = 120.0
BUSY = (429,)
# What an answer may have in it while the server is not whole; nothing ever excuses INTERNAL.
EXCUSED = (
    *(b"engine_fault", b'"unavailable"', b"storage_unavailable", b"storage_full"),
    b'{"type":"error"',
)
INTERNAL = b"internal error"
SECRETS = (b"Traceback", b"/python", b'.py"', b"/site-packages/", b"msgspec", b"0x7f")


class SoakFailure(Exception):
    """The server did what it must not."""


class Inconclusive(Exception):
    """The server was not whole meanwhile, or busy, and said so: no further verdict."""


@dataclass
class Faults:
    """When something was done to the server, until it was whole again (None: not yet); and whether
    that cut connections."""

    windows: list[tuple[float, float | None, bool]] = field(default_factory=list)

    def begin(self, *, cutting: bool = False) -> None:
        self.windows.append((time.monotonic(), None, cutting))

    def end(self) -> None:
        began, _, cutting = self.windows[-1]
        self.windows[-1] = (began, time.monotonic(), cutting)

    def since(self, began: float) -> bool:
        """Whether the server was not whole at some time since then."""
        return any(end is None or end >= began for _, end, _ in self.windows)

    def cut_since(self, began: float) -> bool:
        """Whether connections were cut at some time since then."""
        return any(cut and (end is None or end >= began) for _, end, cut in self.windows)


@dataclass
class TargetServer:
    """A server under siege. `statuses` counts what it answered; 0: nothing. `began`: the start of
    the visit, for which this is; None: of each request."""

    port: int
    faults: Faults = field(default_factory=Faults)
    statuses: Counter[int] = field(default_factory=Counter)
    began: float | None = None

    def visited(self) -> TargetServer:
        """The same for one visit, which begins now."""
        return replace(self, began=time.monotonic())

    async def ask(
        self,
        method: str,
        path: str,
        body: Body = b"",
        expect: Collection[int] = (200,),
        headers: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """The answer to one well-formed request: it has an end, or is cut with its process. Raises
        SoakFailure, Inconclusive."""
        asked, began = f"{method} {path}", time.monotonic()
        raw = await converse(self.port, (request(method, path, body, headers or {}),), timeout_s)
        taken_s = time.monotonic() - began
        if taken_s >= timeout_s:
            raise SoakFailure(
                f"{asked}: no end after {taken_s:.1f} s: {raw[-200:]!r} to {_shown(body)}"
            )
        began = self.began or began
        found = self.judge(raw, began)
        if len(found) != 1 or not found[0].whole:
            self._excuse(self.faults.cut_since(began))
            raise SoakFailure(
                f"{asked}: cut after {taken_s:.1f} s: {raw[-200:]!r} to {_shown(body)}"
            )
        (answer,) = found
        if answer.status in BUSY and answer.status not in expect:
            raise Inconclusive
        if answer.status not in expect:
            raise SoakFailure(f"{asked}: {answer.status} {answer.body[:300]!r} to {_shown(body)}")
        if INTERNAL in answer.body:
            raise SoakFailure(f"{asked}: {answer.body[-300:]!r}")
        if answer.status == 200 and any(code in answer.body for code in EXCUSED):
            self._excuse(self.faults.since(began))
            raise SoakFailure(f"{asked}: {answer.body[-300:]!r}")
        return answer

    async def talk(self, *steps: Step, timeout_s: float = TIMEOUT_S) -> list[Answer]:
        """What the server said to anything. Raises SoakFailure, Inconclusive."""
        began = self.began or time.monotonic()
        return self.judge(await converse(self.port, steps, timeout_s), began)

    def missed(self, what: str) -> NoReturn:
        """An answer is missing. Raises SoakFailure, or Inconclusive if connections were cut."""
        self._excuse(self.began is not None and self.faults.cut_since(self.began))
        raise SoakFailure(what)

    def judge(self, raw: bytes, began: float) -> list[Answer]:
        """The answers, none of them a fault of the server's. Raises SoakFailure, Inconclusive."""
        try:
            found = list(answers(raw))
        except Malformed as error:
            raise SoakFailure(f"not HTTP: {error}") from None
        self.statuses.update([answer.status for answer in found] or [0])
        for answer in found:
            if answer.status >= 400:
                _check_refusal(answer)
            if answer.status >= 500:
                self._excuse(INTERNAL not in answer.body and self.faults.since(began))
                raise SoakFailure(f"{answer.status} {answer.body[:300]!r}")
        return found

    def _excuse(self, excused: bool) -> None:
        if excused:
            raise Inconclusive


def _check_refusal(answer: Answer) -> None:
    """A refusal says what is wrong, in the form that all have, and tells nothing of the inside."""
    if any(secret in answer.body for secret in SECRETS):
        raise SoakFailure(f"a refusal tells too much: {answer.body[:300]!r}")
    if not answer.whole:
        return
    if answer.headers.get("content-type") != "application/json":
        raise SoakFailure(f"{answer.status} without JSON: {answer.body[:100]!r}")
    body = answer.json()
    if "status" not in body and not body["error"]["message"]:
        raise SoakFailure(f"{answer.status} without a message")


def _shown(body: Body) -> str:
    text = repr(body)
    return text if len(text) < 400 else text[:400] + "..."
