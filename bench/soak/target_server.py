"""Requests of the soak's clients, and the checks of their answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NoReturn

from bench.soak.raw_http import Answer, Body, Malformed, Step, answers, converse, request

TIMEOUT_S = 120.0
BUSY_STATUSES = (429,)
# Errors accepted while the server recovers from a fault. INTERNAL is never accepted.
EXCUSED_ERRORS = (
    *(b"engine_fault", b'"unavailable"', b"storage_unavailable", b"storage_full"),
    b'{"type":"error"',
)
INTERNAL = b"internal error"
SECRETS = (b"Traceback", b"/python", b'.py"', b"/site-packages/", b"msgspec", b"0x7f")


class SoakFailure(Exception):
    """The server did something wrong."""


class Inconclusive(Exception):
    """The server was recovering or busy, and said so: the visit has no result."""


@dataclass
class Faults:
    """The time spans of faults, from injection to recovery (None: not yet recovered), and whether
    each cut connections."""

    windows: list[tuple[float, float | None, bool]] = field(default_factory=list)

    def begin(self, *, cutting: bool = False) -> None:
        self.windows.append((time.monotonic(), None, cutting))

    def end(self) -> None:
        began, _, cutting = self.windows[-1]
        self.windows[-1] = (began, time.monotonic(), cutting)

    def recovering_since(self, began: float) -> bool:
        """Return whether the server was recovering at some time since then."""
        return any(end is None or end >= began for _, end, _ in self.windows)

    def cut_since(self, began: float) -> bool:
        """Return whether connections were cut at some time since then."""
        return any(cut and (end is None or end >= began) for _, end, cut in self.windows)


@dataclass
class TargetServer:
    """A server under test. `statuses` counts its answers, 0 for none. `began`: start of the visit
    that uses this object, or None to count from each request."""

    port: int
    faults: Faults = field(default_factory=Faults)
    statuses: Counter[int] = field(default_factory=Counter)
    began: float | None = None

    def for_visit(self) -> TargetServer:
        """Return a copy for one visit, which begins now."""
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
        """Send one well-formed request and return its answer, which must be complete unless a fault
        cut it. Raises SoakFailure, Inconclusive."""
        sent, began = f"{method} {path}", time.monotonic()
        raw = await converse(self.port, (request(method, path, body, headers or {}),), timeout_s)
        taken_s = time.monotonic() - began
        if taken_s >= timeout_s:
            raise SoakFailure(
                f"{sent}: no end after {taken_s:.1f} s: {raw[-200:]!r} to {_shown(body)}"
            )
        began = self.began or began
        found = self.check_answers(raw, began)
        if len(found) != 1 or not found[0].whole:
            self._skip_if(self.faults.cut_since(began))
            raise SoakFailure(
                f"{sent}: cut after {taken_s:.1f} s: {raw[-200:]!r} to {_shown(body)}"
            )
        (answer,) = found
        if answer.status in BUSY_STATUSES and answer.status not in expect:
            raise Inconclusive
        if answer.status not in expect:
            raise SoakFailure(f"{sent}: {answer.status} {answer.body[:300]!r} to {_shown(body)}")
        if INTERNAL in answer.body:
            raise SoakFailure(f"{sent}: {answer.body[-300:]!r}")
        if answer.status == 200 and any(code in answer.body for code in EXCUSED_ERRORS):
            self._skip_if(self.faults.recovering_since(began))
            raise SoakFailure(f"{sent}: {answer.body[-300:]!r}")
        return answer

    async def talk(self, *steps: Step, timeout_s: float = TIMEOUT_S) -> list[Answer]:
        """Send anything and return the answers. Raises SoakFailure, Inconclusive."""
        began = self.began or time.monotonic()
        return self.check_answers(await converse(self.port, steps, timeout_s), began)

    def fail_missing(self, what: str) -> NoReturn:
        """Report that an answer is missing. Raises SoakFailure, or Inconclusive if connections were
        cut."""
        self._skip_if(self.began is not None and self.faults.cut_since(self.began))
        raise SoakFailure(what)

    def check_answers(self, raw: bytes, began: float) -> list[Answer]:
        """Parse the answers and check that none is a server error. Raises SoakFailure,
        Inconclusive."""
        try:
            found = list(answers(raw))
        except Malformed as error:
            raise SoakFailure(f"not HTTP: {error}") from None
        self.statuses.update([answer.status for answer in found] or [0])
        for answer in found:
            if answer.status >= 400:
                _check_refusal(answer)
            if answer.status >= 500:
                self._skip_if(INTERNAL not in answer.body and self.faults.recovering_since(began))
                raise SoakFailure(f"{answer.status} {answer.body[:300]!r}")
        return found

    def _skip_if(self, excused: bool) -> None:
        if excused:
            raise Inconclusive


def _check_refusal(answer: Answer) -> None:
    """Check that an error has the common format and a message, and reveals no internals."""
    if any(secret in answer.body for secret in SECRETS):
        raise SoakFailure(f"an error reveals internals: {answer.body[:300]!r}")
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
