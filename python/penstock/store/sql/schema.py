"""The tables of the database. A change here needs a step in `migrations` for existing databases."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    TypeDecorator,
)

metadata: Final = MetaData()


class Text(TypeDecorator[str]):
    """A text from a client. Replaces U+0000, which PostgreSQL does not accept; an id that contains
    U+0000 therefore matches no row."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\x00", "\ufffd")


def _sequence() -> Column[int]:
    """Return a column whose value increases with every new row, so that it gives the order of
    insertion."""
    kind = BigInteger().with_variant(Integer, "sqlite")
    return Column("sequence", kind, primary_key=True, autoincrement=True)


# A table with one row. `store_id` never changes; it names the folder of this database's blobs.
identity: Final = Table(
    "penstock_store",
    metadata,
    Column("store_id", String(64), primary_key=True),
    Column("version", Integer, nullable=False),
)

# `size_bytes`: the total size of body, conversation and events.
responses: Final = Table(
    "responses",
    metadata,
    Column("id", Text(128), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("status", Text(16), nullable=False),
    Column("background", Boolean, nullable=False),
    Column("owner", Text(128), nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("conversation", LargeBinary, nullable=False),
    Column("previous_id", Text(128)),
    Column("expires_at", BigInteger),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("container", Text(128), nullable=False, server_default=""),
    Column("turn_length", Integer),
    Index("responses_by_status", "status", "heartbeat_at"),
    Index("responses_by_expiry", "expires_at"),
)
# Covers the query that sums the sizes of responses in the order in which they are deleted.
responses_by_age: Final = Index(
    "responses_by_age",
    *(responses.c[name] for name in ("created_at", "id", "size_bytes", "status")),
)

# The frames of a response's stream in chunks. A chunk has the events numbered `first` to
# `following` - 1.
response_events: Final = Table(
    "response_events",
    metadata,
    Column("response_id", Text(128), primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("following", BigInteger, nullable=False),
    Column("frames", LargeBinary, nullable=False),
)

# `body`: the name of the content in Blobs. It differs from the id, because an id may be used again
# while the content of a deleted file with that id is still being deleted.
files: Final = Table(
    "files",
    metadata,
    _sequence(),
    Column("id", Text(128), nullable=False, unique=True),
    Column("name", Text(), nullable=False),
    Column("format", Text(), nullable=False),
    Column("mime_type", Text(), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("purpose", Text(), nullable=False),
    Column("source_tool", Text(), nullable=False),
    Column("source_round", Integer, nullable=False),
    Column("source_turn", Integer, nullable=False),
    Column("container_id", Text(256)),
    Column("session", Text(256)),
    Column("elided", Boolean, nullable=False),
    Column("code", Text()),
    Column("message", Text()),
    Column("body", Text(192), nullable=False, server_default=""),
    Index("files_by_expiry", "expires_at"),
    Index("files_by_container", "container_id"),
    Index("files_by_session", "session"),
)

# `used` orders sessions by their last use. `messages` is null until the first run is saved. While a
# run has the lease, no other run can start until the lease is released or expires.
sessions: Final = Table(
    "sessions",
    metadata,
    _sequence(),
    Column("id", Text(256), nullable=False, unique=True),
    Column("used", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("messages", LargeBinary),
    Column("lease_holder", Text(64)),
    Column("lease_until", BigInteger),
    Index("sessions_by_use", "used"),
    Index("sessions_by_expiry", "expires_at"),
)

approvals: Final = Table(
    "approvals",
    metadata,
    Column("id", Text(128), primary_key=True),
    Column("session", Text(256)),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("waiting", Boolean, nullable=False),
    Column("decision", Text(16)),
    Column("message", Text()),
    Column("remember", Boolean, nullable=False),
    Index("approvals_by_expiry", "expires_at"),
    Index("approvals_by_session", "session"),
)

skills: Final = Table(
    "skills",
    metadata,
    _sequence(),
    Column("id", Text(128), nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("name", Text(), nullable=False),
    Column("description", Text(), nullable=False),
    Column("latest_version", Integer, nullable=False),
)

skill_versions: Final = Table(
    "skill_versions",
    metadata,
    Column("skill_id", Text(128), ForeignKey("skills.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("name", Text(), nullable=False),
    Column("description", Text(), nullable=False),
    Column("directory", Text(), nullable=False),
    Column("body", Text(128), nullable=False),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
)

# The chats of the web page. `words`: the title, case-folded for searches.
chats: Final = Table(
    "chats",
    metadata,
    Column("id", Text(128), primary_key=True),
    Column("title", Text(), nullable=False),
    Column("words", Text(), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("settings", LargeBinary, nullable=False),
    Column("tail", Text(128)),
    Index("chats_by_update", "updated_at", "id"),
)

# `text`: the text of the message; `words`: the same, case-folded for searches.
# `size_bytes`: the size of `blocks`.
chat_messages: Final = Table(
    "chat_messages",
    metadata,
    _sequence(),
    Column("id", Text(128), nullable=False, unique=True),
    Column("chat_id", Text(128), ForeignKey("chats.id"), nullable=False),
    Column("parent", Text(128)),
    Column("role", Text(16), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("status", Text(16), nullable=False),
    Column("blocks", LargeBinary, nullable=False),
    Column("info", LargeBinary, nullable=False),
    Column("text", Text(), nullable=False),
    Column("words", Text(), nullable=False),
    Column("owner", Text(128), nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
    Column("stop_requested", Boolean, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Index("chat_messages_by_chat", "chat_id"),
    # Covers the query that sums the sizes.
    Index("chat_messages_by_size", "size_bytes"),
)

# `chat_id` is null until a message uses the attachment. `body`: the name of the content in Blobs.
chat_attachments: Final = Table(
    "chat_attachments",
    metadata,
    _sequence(),
    Column("id", Text(128), nullable=False, unique=True),
    Column("chat_id", Text(128), ForeignKey("chats.id")),
    Column("name", Text(), nullable=False),
    Column("mime_type", Text(), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("body", Text(192), nullable=False),
    Index("chat_attachments_by_chat", "chat_id"),
    Index("chat_attachments_by_size", "size_bytes"),
)
