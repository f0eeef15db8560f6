"""Translates errors of the database and the disk into errors for clients, and logs the causes."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from penstock.base.errors import ServiceError
from penstock.store.errors import StorageFull, StorageUnavailable

log = logging.getLogger(__name__)

FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT)
# Parts of the messages of SQLite and PostgreSQL for a full disk, and PostgreSQL's error code.
FULL_TEXTS: Final = ("database or disk is full", "No space left on device")
FULL_SQLSTATE: Final = "53100"


@contextmanager
def translated_faults() -> Iterator[None]:
    """Context manager that converts errors of the database and the disk in its block into
    StorageFull or StorageUnavailable."""
    try:
        yield
    except DBAPIError as error:
        log.warning("database: %s", error.orig)
        raise _translate(error) from None
    except SQLAlchemyError as error:  # no connection was free in time
        log.warning("database: %s", error)
        raise StorageUnavailable from None
    except OSError as error:
        log.warning("blobs: %s", error)
        full = error.errno in FULL_ERRNOS
        raise (StorageFull() if full else StorageUnavailable()) from None


def _translate(error: DBAPIError) -> ServiceError:
    text = str(error.orig)
    sqlstate = getattr(error.orig, "sqlstate", None)
    if sqlstate == FULL_SQLSTATE or any(full in text for full in FULL_TEXTS):
        return StorageFull()
    return StorageUnavailable()
