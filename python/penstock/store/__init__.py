"""What outlives a request: responses, files, sessions, skills, approvals.

Imports base, config and dialog only. The database is SQLite or PostgreSQL through SQLAlchemy, the
bodies lie where fsspec reaches; no API process holds what another one may need.
"""

from penstock.store.records import FileSource, NewFile, StoredFile, StoredResponse
from penstock.store.store import Store

__all__ = ["FileSource", "NewFile", "Store", "StoredFile", "StoredResponse"]
