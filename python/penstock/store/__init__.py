"""What outlives a request: responses, files, sessions, skills, approvals.

Imports base, config and dialog only. The database is SQLite or PostgreSQL through SQLAlchemy, the
bodies lie where fsspec reaches; no API process holds what another one may need.

`Store` is imported when it is first asked for: its libraries take a fifth of a second, which a
server spends while its engine loads. Whoever needs it as a type imports it under TYPE_CHECKING.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.store.records import (
    FileSource,
    NewFile,
    SkillBundle,
    SkillVersion,
    StoredFile,
    StoredResponse,
    StoredSession,
    StoredSkill,
    Verdict,
)

if TYPE_CHECKING:
    from penstock.store.store import Store

__all__ = [
    "FileSource",
    "NewFile",
    "SkillBundle",
    "SkillVersion",
    "Store",
    "StoredFile",
    "StoredResponse",
    "StoredSession",
    "StoredSkill",
    "Verdict",
]


def __getattr__(name: str) -> Any:
    if name == "Store":
        from penstock.store.store import Store

        return Store
    raise AttributeError(name)
