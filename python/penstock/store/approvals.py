"""Approvals of tool calls: a run waits for a decision, which a client may send to any API
process."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from penstock.base.ids import new_id
from penstock.store.clock import Clock
from penstock.store.records import Decision, Verdict
from penstock.store.retention import Retention
from penstock.store.sql.database import Database
from penstock.store.sql.schema import approvals

DecisionStatus = Literal["resolved", "queued", "not_found"]

# Seconds between two checks of a waiting run for a decision that another process received.
POLL_INTERVAL_S: Final = 0.25
TIMED_OUT: Final = Verdict("deny", "Approval timed out.")

_TABLE: Final = approvals.c


class Approvals:
    """Creates approvals for runs and records the decisions.

    `session_expiry_s`: seconds for which a remembered approval of a session is valid.
    """

    def __init__(
        self, database: Database, clock: Clock, retention: Retention, session_expiry_s: int
    ) -> None:
        self._database = database
        self._clock = clock
        self._retention = retention
        self._session_expiry_s = session_expiry_s
        self._decided: dict[str, asyncio.Event] = {}

    async def create(self, session: str | None = None) -> str:
        """Create an approval that waits for a decision. Returns its id, which the client needs to
        decide."""
        now = self._clock()
        values = {
            "id": new_id("appr_"),
            "session": session,
            "created_at": now,
            "expires_at": now + self._retention.expiry_s,
            "waiting": False,
            "remember": False,
        }
        await self._database.write(lambda c: c.execute(insert(approvals).values(values)))
        return str(values["id"])

    async def wait(self, id: str) -> Verdict:
        """Wait for the decision and return it. Without a decision in five minutes, return a denial.
        The approval is then deleted unless it is remembered, so `wait` may be called once per
        approval."""
        await self._database.write(
            lambda c: c.execute(update(approvals).where(_TABLE.id == id).values(waiting=True))
        )
        event = self._decided.setdefault(id, asyncio.Event())
        try:
            while True:
                found = await self._database.read(lambda c: self._look(c, id))
                if found is not None:
                    return found
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), POLL_INTERVAL_S)
        finally:
            del self._decided[id]
            forget = delete(approvals).where(_TABLE.id == id, ~_TABLE.remember)
            await self._database.write(lambda c: c.execute(forget))

    async def decide(
        self, id: str, decision: Decision, *, message: str | None, remember: bool
    ) -> DecisionStatus:
        """Record the decision on an approval. An approval can be decided only once.

        `message`: a text for the model, sent with a denial.
        `remember`: an approval is also valid for later requests of the session.

        Returns "resolved", "queued" if no run waits for the decision yet, or "not_found" if the
        approval is unknown, expired or already decided.
        """
        values: dict[str, Any] = {"decision": decision, "message": message}
        if remember and decision == "approve":
            values["remember"] = True
            values["expires_at"] = self._clock() + self._session_expiry_s
        change = (
            update(approvals)
            .where(_TABLE.id == id, _TABLE.decision.is_(None), self._alive())
            .values(values)
            .returning(_TABLE.waiting)
        )
        waiting = await self._database.write(lambda c: c.execute(change).scalar_one_or_none())
        if waiting is None:
            return "not_found"
        if id in self._decided:
            self._decided[id].set()
        return "resolved" if waiting else "queued"

    async def remembered(self, session: str) -> bool:
        """Tell whether a session has an unexpired approval that is remembered."""
        query = select(_TABLE.id).where(_TABLE.session == session, _TABLE.remember, self._alive())
        return await self._database.read(lambda c: c.execute(query).first() is not None)

    def _look(self, connection: Connection, id: str) -> Verdict | None:
        query = select(_TABLE.decision, _TABLE.message).where(_TABLE.id == id, self._alive())
        row = connection.execute(query).one_or_none()
        if row is None:
            return TIMED_OUT
        return None if row.decision is None else Verdict(row.decision, row.message)

    def _alive(self) -> ColumnElement[bool]:
        return _TABLE.expires_at > self._clock()
