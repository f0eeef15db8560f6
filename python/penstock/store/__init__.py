"""The store: responses, files, sessions, skills and approvals that outlive a request.

Imports only the packages base, config and dialog. Rows are stored in SQLite or PostgreSQL (through
SQLAlchemy), the contents of files in a folder or another fsspec file system. An API process keeps
no state that another API process needs.

`Store` is imported when it is first used: its libraries take 0.2 s to import, which a server does
while its engine loads. Code that needs only the type imports it under TYPE_CHECKING.
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
