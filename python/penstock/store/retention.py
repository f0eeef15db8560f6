"""How long things are kept and how many of them: the one table of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, Table, delete, func, select

from penstock.config import StoreSettings
from penstock.store.schema import approvals, files, responses, sessions

# The specification's: then the runtime counts the approval as denied.
APPROVAL_EXPIRY_S: Final = 5 * 60


class Retention(NamedTuple):
    """`expiry_s`: from the creation, or the last change, on; 0: for ever. `most`: beyond it those
    go that come first by the column `order`; 0: as many as fit."""

    table: Table
    expiry_s: int
    most: int = 0
    order: str = "sequence"


class Retentions(NamedTuple):
    """By kind of thing. All of them have the columns `id` and `expires_at`."""

    responses: Retention
    files: Retention
    sessions: Retention
    approvals: Retention


def retentions_of(settings: StoreSettings) -> Retentions:
    """The table, as the operator has set it."""
    return Retentions(
        responses=Retention(responses, settings.response_expiry_s),
        files=Retention(files, settings.file_expiry_s, settings.max_files),
        sessions=Retention(sessions, settings.session_expiry_s, settings.max_sessions, "used"),
        approvals=Retention(approvals, APPROVAL_EXPIRY_S),
    )


def drop_oldest(connection: Connection, retention: Retention) -> list[str]:
    """Delete what is beyond the quota; the ids of it."""
    table, most = retention.table, retention.most
    if most == 0:
        return []
    surplus = connection.execute(select(func.count()).select_from(table)).scalar_one() - most
    if surplus <= 0:
        return []
    first = select(table.c.id).order_by(table.c[retention.order]).limit(surplus)
    change = delete(table).where(table.c.id.in_(first)).returning(table.c.id)
    return list(connection.execute(change).scalars())


def drop_expired(connection: Connection, table: Table, now: int) -> list[str]:
    """Delete what has expired; the ids of it."""
    change = delete(table).where(table.c.expires_at <= now).returning(table.c.id)
    return list(connection.execute(change).scalars())
