"""Creates the tables of `schema` in a new database, and migrates an older database step by step,
with one transaction per step. Several processes may do this at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, func, insert, inspect, select, text, update

from penstock.base.ids import new_id
from penstock.config import SettingsError
from penstock.store.sql.database import Database, write_in
from penstock.store.sql.probe import VERSION
from penstock.store.sql.schema import (
    chat_attachments,
    chat_messages,
    chats,
    identity,
    metadata,
    response_events,
    responses,
    responses_by_age,
    skill_versions,
)

Step = Callable[[Connection], None]


def _add_response_events(connection: Connection) -> None:
    response_events.create(connection)


def _add_sizes(connection: Connection) -> None:
    """Add the columns `size_bytes`. The value stays 0 for existing skills."""
    for table in (responses, skill_versions):
        connection.execute(
            text(f"ALTER TABLE {table.name} ADD COLUMN size_bytes BIGINT DEFAULT 0 NOT NULL")
        )
    events = select(func.coalesce(func.sum(func.length(response_events.c.frames)), 0)).where(
        response_events.c.response_id == responses.c.id
    )
    size = func.length(responses.c.body) + func.length(responses.c.conversation)
    connection.execute(update(responses).values(size_bytes=size + events.scalar_subquery()))
    responses_by_age.create(connection)


def _name_bodies(connection: Connection) -> None:
    """Add columns for the names of bodies in Blobs; in older versions the name was the id of the
    file."""
    connection.execute(text("ALTER TABLE files ADD COLUMN body VARCHAR(192) DEFAULT '' NOT NULL"))
    connection.execute(text("UPDATE files SET body = 'files/' || id"))


def _add_containers(connection: Connection) -> None:
    """Add columns for what a conversation with server tools needs. They stay empty for existing
    responses."""
    added = "container VARCHAR(128) DEFAULT '' NOT NULL", "turn_length INTEGER"
    for column in added:
        connection.execute(text(f"ALTER TABLE responses ADD COLUMN {column}"))


def _add_chats(connection: Connection) -> None:
    for table in (chats, chat_messages, chat_attachments):
        table.create(connection)


# STEPS[k] migrates version k + 1 to version k + 2.
STEPS: Final[tuple[Step, ...]] = (
    _add_response_events,
    _add_sizes,
    _name_bodies,
    _add_containers,
    _add_chats,
)
assert len(STEPS) + 1 == VERSION
# The key of Penstock's advisory lock in PostgreSQL.
LOCK_KEY: Final = 0x70656E73746F636B


def migrate(database: Database, steps: tuple[Step, ...] = STEPS) -> str:
    """Create or migrate the tables. Returns the id of the store.

    `steps`: the migrations, in order; `steps[k]` migrates version k + 1 to k + 2.

    Raises SQLAlchemyError, and SettingsError if a newer Penstock created the database.
    """
    newest = len(steps) + 1
    with database.engine.connect() as connection:
        while write_in(connection, lambda c: _advance(c, steps)) < newest:
            pass
        store_id: str = connection.execute(select(identity.c.store_id)).scalar_one()
        return store_id


def _advance(connection: Connection, steps: tuple[Step, ...]) -> int:
    """Create the tables of a new database, or run the next migration step. Returns the version of
    the tables afterwards."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
    newest = len(steps) + 1
    version = _version(connection)
    if version is None:
        metadata.create_all(connection)
        connection.execute(insert(identity).values(store_id=new_id(""), version=newest))
        return newest
    if version > newest:
        raise SettingsError(
            f"[store] url: the database has version {version}, but this Penstock supports up to"
            f" {newest}; use a newer Penstock or another database"
        )
    if version < newest:
        steps[version - 1](connection)
        version += 1
        connection.execute(update(identity).values(version=version))
    return version


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(identity.name):
        return None
    version: int = connection.execute(select(identity.c.version)).scalar_one()
    return version
