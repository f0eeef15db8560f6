"""How long things are kept and how many of them: the one table of it."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, Table, delete, select

from penstock.config import StoreSettings
from penstock.store.schema import files, responses


class Retention(NamedTuple):
    """`expiry_s`: from the creation, or the last change, on; 0: for ever. `most`: beyond it the
    oldest go; 0: as many as fit."""

    table: Table
    expiry_s: int
    most: int


class Retentions(NamedTuple):
    """By kind of thing."""

    responses: Retention
    files: Retention


def retentions_of(settings: StoreSettings) -> Retentions:
    """The table, as the operator has set it."""
    return Retentions(
        responses=Retention(responses, settings.response_expiry_s, 0),
        files=Retention(files, settings.file_expiry_s, settings.max_files),
    )


def drop_oldest(connection: Connection, retention: Retention) -> list[str]:
    """Delete what is beyond the quota; the ids of it. The table has `sequence` and `id`."""
    if retention.most == 0:
        return []
    columns = retention.table.c
    kept = select(columns.sequence).order_by(columns.sequence.desc())
    last = kept.offset(retention.most - 1).limit(1).scalar_subquery()
    change = delete(retention.table).where(columns.sequence < last).returning(columns.id)
    return list(connection.execute(change).scalars())


def drop_expired(connection: Connection, table: Table, now: int) -> list[str]:
    """Delete what has expired; the ids of it. The table has `expires_at` and `id`."""
    change = delete(table).where(table.c.expires_at <= now).returning(table.c.id)
    return list(connection.execute(change).scalars())
