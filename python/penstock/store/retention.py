"""How long things are kept and how many of them: the one table of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, case, delete, func, select

from penstock.config import StoreSettings
from penstock.store.schema import approvals, files, responses, sessions

# The specification's: then the runtime counts the approval as denied.
APPROVAL_EXPIRY_S: Final = 5 * 60


class Retention(NamedTuple):
    """`expiry_s`: from the creation, or the last change, on; 0: for ever. `most`: beyond it those
    go that come first by the column `order`; 0: as many as fit. `most_bytes`: beyond it too, but
    never the last one; 0: as much as fits. Counted by `size_bytes`, of what is not `elided`."""

    table: Table
    expiry_s: int
    most: int = 0
    order: str = "sequence"
    most_bytes: int = 0


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
        files=Retention(
            files, settings.file_expiry_s, settings.max_files, most_bytes=settings.max_files_bytes
        ),
        sessions=Retention(sessions, settings.session_expiry_s, settings.max_sessions, "used"),
        approvals=Retention(approvals, APPROVAL_EXPIRY_S),
    )


def drop_oldest(connection: Connection, retention: Retention) -> list[str]:
    """Delete what is beyond the quotas; the ids of it."""
    dropped = _drop_surplus(connection, retention) if retention.most else []
    if retention.most_bytes:
        dropped += _drop_bytes(connection, retention)
    return dropped


def _drop_surplus(connection: Connection, retention: Retention) -> list[str]:
    table = retention.table
    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
    if count <= retention.most:
        return []
    oldest = select(table.c.id).order_by(table.c[retention.order]).limit(count - retention.most)
    return _drop(connection, table, table.c.id.in_(oldest))


def _drop_bytes(connection: Connection, retention: Retention) -> list[str]:
    table, order = retention.table, retention.table.c[retention.order]
    kept_bytes = case((table.c.elided, 0), else_=table.c.size_bytes)
    total = select(func.coalesce(func.sum(kept_bytes), 0))
    if connection.execute(total).scalar_one() <= retention.most_bytes:
        return []
    newest_first = order.desc()
    ranked = select(
        table.c.id,
        func.sum(kept_bytes).over(order_by=newest_first).label("up_to_here"),
        func.row_number().over(order_by=newest_first).label("rank"),
    ).subquery()
    beyond = ranked.c.up_to_here > retention.most_bytes
    gone = select(ranked.c.id).where(beyond, ranked.c.rank > 1)
    return _drop(connection, table, table.c.id.in_(gone))


def drop_expired(connection: Connection, table: Table, now: int) -> list[str]:
    """Delete what has expired; the ids of it."""
    return _drop(connection, table, table.c.expires_at <= now)


def _drop(connection: Connection, table: Table, which: ColumnElement[bool]) -> list[str]:
    change = delete(table).where(which).returning(table.c.id)
    return list(connection.execute(change).scalars())
