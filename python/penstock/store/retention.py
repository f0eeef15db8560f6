"""How long things are kept and how many of them: the one table of it."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, case, delete, func, select, true

from penstock.config import StoreSettings
from penstock.store.records import UNFINISHED
from penstock.store.sql.schema import approvals, files, responses, sessions

# The specification's: then the runtime counts the approval as denied.
APPROVAL_EXPIRY_S: Final = 5 * 60
CHUNK_ROWS: Final = 500
# What is beyond a quota of bytes goes in parts, so that no writer waits long.
MOST_AT_ONCE: Final = 20 * CHUNK_ROWS


class Retention(NamedTuple):
    """`expiry_s`: from the creation, or the last change, on; 0: for ever. `most`: beyond it those
    go that come first by the column `order`; 0: as many as fit. `most_bytes`: beyond it too, but
    never the last one; 0: as much as fits. That counts `size`. Only what is `settled` goes then. Of
    what goes the column `told` is told."""

    table: Table
    expiry_s: int
    most: int = 0
    order: str = "sequence"
    most_bytes: int = 0
    size: ColumnElement[int] | None = None
    settled: ColumnElement[bool] = true()
    told: str = "id"


class Retentions(NamedTuple):
    """By kind of thing. All of them have the columns `id` and `expires_at`."""

    responses: Retention
    files: Retention
    sessions: Retention
    approvals: Retention


def retentions_of(settings: StoreSettings) -> Retentions:
    """The table, as the operator has set it."""
    return Retentions(
        responses=Retention(
            responses,
            settings.response_expiry_s,
            order="created_at",
            most_bytes=settings.max_responses_bytes,
            size=responses.c.size_bytes,
            settled=responses.c.status.not_in(UNFINISHED),
        ),
        files=Retention(
            files,
            settings.file_expiry_s,
            settings.max_files,
            most_bytes=settings.max_files_bytes,
            size=case((files.c.elided, 0), else_=files.c.size_bytes),
            told="body",
        ),
        sessions=Retention(
            sessions,
            settings.session_expiry_s,
            settings.max_sessions,
            "used",
            most_bytes=settings.max_sessions_bytes,
            size=func.coalesce(func.length(sessions.c.messages), 0),
        ),
        approvals=Retention(approvals, APPROVAL_EXPIRY_S),
    )


def drop_oldest(connection: Connection, retention: Retention, written: str = "") -> list[str]:
    """Delete what is beyond the quotas; what is told of it. If that is so many as `MOST_AT_ONCE`,
    call again. What is being `written` stays within the quota of bytes, whenever it began."""
    dropped = _drop_surplus(connection, retention) if retention.most else []
    if retention.most_bytes and retention.size is not None:
        dropped += _drop_bytes(connection, retention, retention.size, written)
    return dropped


def _drop_surplus(connection: Connection, retention: Retention) -> list[str]:
    table = retention.table
    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
    if count <= retention.most:
        return []
    oldest = select(table.c.id).order_by(table.c[retention.order]).limit(count - retention.most)
    return _drop(connection, retention, table.c.id.in_(oldest))


def _drop_bytes(
    connection: Connection, retention: Retention, size: ColumnElement[int], written: str
) -> list[str]:
    table = retention.table
    total = connection.execute(select(func.coalesce(func.sum(size), 0))).scalar_one()
    surplus = total - retention.most_bytes
    oldest = select(table.c.id, size).where(retention.settled, table.c.id != written)
    oldest = oldest.order_by(table.c[retention.order], table.c.id)
    gone: list[str] = []
    with connection.execute(oldest.execution_options(yield_per=CHUNK_ROWS)) as rows:
        for id, size_bytes in rows:
            if surplus <= 0 or len(gone) == MOST_AT_ONCE:
                break
            gone.append(id)
            surplus -= size_bytes
        else:
            gone = gone if written else gone[:-1]
    told: list[str] = []
    for start in range(0, len(gone), CHUNK_ROWS):
        told += _drop(connection, retention, table.c.id.in_(gone[start : start + CHUNK_ROWS]))
    return told


def drop_expired(connection: Connection, retention: Retention, now: int) -> list[str]:
    """Delete what has expired; what is told of it."""
    return _drop(connection, retention, retention.table.c.expires_at <= now)


def _drop(connection: Connection, retention: Retention, which: ColumnElement[bool]) -> list[str]:
    table = retention.table
    change = delete(table).where(which).returning(table.c[retention.told])
    return list(connection.execute(change).scalars())
