"""Limits on stored records of each type: their age, number and total size."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, case, delete, func, select, true

from penstock.config import StoreSettings
from penstock.store.records import UNFINISHED
from penstock.store.sql.schema import approvals, files, responses, sessions

# Seconds. An approval that is not decided within this time counts as denied.
APPROVAL_EXPIRY_S: Final = 5 * 60
CHUNK_ROWS: Final = 500
# Limits the deletions for the byte quota in one transaction, so that other writers do not wait
# long.
MAX_DELETIONS: Final = 20 * CHUNK_ROWS


class Retention(NamedTuple):
    """The limits of one table. To stay within `max_rows` and `max_bytes`, rows are deleted in
    ascending order of the column `order`.

    `expiry_s`: seconds from the creation or the last change of a row to its expiry; 0: never.
    `max_rows`: the number of rows; 0: unlimited.
    `max_bytes`: the sum of `size` over all rows; 0: unlimited. One row is always kept, however
    large.
    `size`: the expression for the size of a row in bytes.
    `deletable`: the condition for rows that may be deleted to stay within `max_bytes`.
    `returned`: the name of the column whose values a deletion returns.
    """

    table: Table
    expiry_s: int
    max_rows: int = 0
    order: str = "sequence"
    max_bytes: int = 0
    size: ColumnElement[int] | None = None
    deletable: ColumnElement[bool] = true()
    returned: str = "id"


class Retentions(NamedTuple):
    """The limits of all tables. Each table has the columns `id` and `expires_at`."""

    responses: Retention
    files: Retention
    sessions: Retention
    approvals: Retention


def retentions_of(settings: StoreSettings) -> Retentions:
    """Return the limits that the operator's settings define."""
    return Retentions(
        responses=Retention(
            responses,
            settings.response_expiry_s,
            order="created_at",
            max_bytes=settings.max_responses_bytes,
            size=responses.c.size_bytes,
            deletable=responses.c.status.not_in(UNFINISHED),
        ),
        files=Retention(
            files,
            settings.file_expiry_s,
            settings.max_files,
            max_bytes=settings.max_files_bytes,
            size=case((files.c.elided, 0), else_=files.c.size_bytes),
            returned="body",
        ),
        sessions=Retention(
            sessions,
            settings.session_expiry_s,
            settings.max_sessions,
            "used",
            max_bytes=settings.max_sessions_bytes,
            size=func.coalesce(func.length(sessions.c.messages), 0),
        ),
        approvals=Retention(approvals, APPROVAL_EXPIRY_S),
    )


def delete_oldest(connection: Connection, retention: Retention, written: str = "") -> list[str]:
    """Delete the oldest rows beyond the limits on rows and bytes.

    `written`: the id of a row that is being written and must not be deleted for the byte limit.

    Returns the values of column `returned` of the deleted rows. If MAX_DELETIONS or more rows are
    returned, call again: more rows may have to be deleted.
    """
    deleted = _delete_surplus_rows(connection, retention) if retention.max_rows else []
    if retention.max_bytes and retention.size is not None:
        deleted += _delete_surplus_bytes(connection, retention, retention.size, written)
    return deleted


def _delete_surplus_rows(connection: Connection, retention: Retention) -> list[str]:
    table = retention.table
    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
    if count <= retention.max_rows:
        return []
    oldest = select(table.c.id).order_by(table.c[retention.order]).limit(count - retention.max_rows)
    return _delete_where(connection, retention, table.c.id.in_(oldest))


def _delete_surplus_bytes(
    connection: Connection, retention: Retention, size: ColumnElement[int], written: str
) -> list[str]:
    table = retention.table
    total = connection.execute(select(func.coalesce(func.sum(size), 0))).scalar_one()
    surplus = total - retention.max_bytes
    oldest = select(table.c.id, size).where(retention.deletable, table.c.id != written)
    oldest = oldest.order_by(table.c[retention.order], table.c.id)
    ids: list[str] = []
    with connection.execute(oldest.execution_options(yield_per=CHUNK_ROWS)) as rows:
        for id, size_bytes in rows:
            if surplus <= 0 or len(ids) == MAX_DELETIONS:
                break
            ids.append(id)
            surplus -= size_bytes
        else:
            ids = ids if written else ids[:-1]
    deleted: list[str] = []
    for start in range(0, len(ids), CHUNK_ROWS):
        chunk = ids[start : start + CHUNK_ROWS]
        deleted += _delete_where(connection, retention, table.c.id.in_(chunk))
    return deleted


def delete_expired(connection: Connection, retention: Retention, now: int) -> list[str]:
    """Delete the rows that expired at or before `now`. Returns the values of their column
    `returned`."""
    return _delete_where(connection, retention, retention.table.c.expires_at <= now)


def _delete_where(
    connection: Connection, retention: Retention, which: ColumnElement[bool]
) -> list[str]:
    table = retention.table
    change = delete(table).where(which).returning(table.c[retention.returned])
    return list(connection.execute(change).scalars())
