"""The database: an SQLAlchemy engine that is used from dedicated threads.

SQLite allows one writer at a time, so each process writes from one thread: the writes of the
process queue in order, and only other processes compete for SQLite's lock. With `synchronous=FULL`
a commit is on the disk when it returns, so acknowledged writes survive a power failure. A commit
takes the disk milliseconds, so waiting writes share a commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError

from penstock.config import SettingsError
from penstock.store.sql.faults import translated_faults

READERS: Final = 4
# Seconds that a write waits for the writes of other processes, or for a connection.
LOCK_TIMEOUT_S: Final = 10.0
# The maximum number of writes in one commit.
MAX_BATCH: Final = 64
WAL_PAUSE_S: Final = 0.02
WRITES: Final = "penstock_writes"
# PostgreSQL's error codes for a deadlock and for a serialization failure.
RACES: Final = ("40P01", "40001")
DRIVERS: Final = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}

_T = TypeVar("_T")
_Write = tuple[Callable[[Connection], Any], "Future[Any]"]


class Database:
    """Runs functions that get a Connection, each in one transaction."""

    def __init__(self, url: str) -> None:
        """Create the engine, without connecting. Raises SettingsError for a URL that is neither
        SQLite nor PostgreSQL, and OSError if the folder of an SQLite database cannot be created."""
        parsed = parse_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        try:
            self.engine = _engine(parsed, LOCK_TIMEOUT_S)
        except ImportError:
            raise SettingsError(
                "[store] PostgreSQL needs psycopg: pip install 'psycopg[binary]>=3.2,<4'"
            ) from None
        writers = 1 if self.is_sqlite else READERS
        self._readers = ThreadPoolExecutor(READERS, "penstock-store-read")
        self._writers = ThreadPoolExecutor(writers, "penstock-store-write")
        self._waiting: deque[_Write] = deque()

    async def read(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work`, which must only read, and return its result. Raises StorageUnavailable."""
        return await self._call(self._readers, self._read, work)

    async def write(self, work: Callable[[Connection], _T]) -> _T:
        """Run `work`, commit its changes, and return its result. If the caller is cancelled, the
        changes may or may not be committed. Raises StorageUnavailable or StorageFull; then nothing
        was changed.

        `work` may be called again after a rollback, so it must have no other side effects.
        """
        if not self.is_sqlite:
            return await self._call(self._writers, self._write, work)
        done: Future[_T] = Future()
        self._waiting.append((work, done))
        self._writers.submit(self._write_waiting)
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """Wait for pending writes and close the connections."""
        for threads in (self._writers, self._readers):
            threads.shutdown()
        self.engine.dispose()

    async def _call(
        self,
        threads: ThreadPoolExecutor,
        method: Callable[[Callable[[Connection], _T]], _T],
        work: Callable[[Connection], _T],
    ) -> _T:
        return await asyncio.get_running_loop().run_in_executor(threads, method, work)

    def _read(self, work: Callable[[Connection], _T]) -> _T:
        with translated_faults(), self.engine.connect() as connection:
            return work(connection)

    def _write_waiting(self) -> None:
        """Run all waiting writes in one transaction. If any of them fails, run each in its own
        transaction."""
        batch: list[_Write] = []
        while self._waiting and len(batch) < MAX_BATCH:
            work, done = self._waiting.popleft()
            if done.set_running_or_notify_cancel():
                batch.append((work, done))
        if len(batch) < 2 or not self._write_together(batch):
            for work, done in batch:
                _resolve(done, partial(self._write, work))

    def _write_together(self, batch: list[_Write]) -> bool:
        together: Future[list[Any]] = Future()
        _resolve(together, lambda: self._write(lambda c: [work(c) for work, _ in batch]))
        if together.exception() is not None:
            return False
        for (_, done), result in zip(batch, together.result(), strict=True):
            done.set_result(result)
        return True

    def _write(self, work: Callable[[Connection], _T]) -> _T:
        with translated_faults(), self.engine.connect() as connection:
            try:
                return write_in(connection, work)
            except DBAPIError as error:
                if not _lost_a_race(error):
                    raise
                return write_in(connection, work)


def _resolve(done: Future[_T], call: Callable[[], _T]) -> None:
    """Set the future to the result or the exception of `call()`, as an executor does."""
    try:
        result = call()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)


def write_in(connection: Connection, work: Callable[[Connection], _T]) -> _T:
    """Return the result of `work`, run in a transaction that has the write lock from its start."""
    connection.execution_options(**{WRITES: True})
    with connection.begin():
        return work(connection)


def _lost_a_race(error: DBAPIError) -> bool:
    """Tell whether a concurrent writer caused the error (a duplicate id, a deadlock or a
    serialization failure). The transaction can then be retried and sees the changes of that
    writer."""
    return isinstance(error, IntegrityError) or _sqlstate(error) in RACES


def _sqlstate(error: DBAPIError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def parse_url(text: str) -> URL:
    """Parse a database URL and select the driver for it. Raises SettingsError."""
    wrong = SettingsError("[store] url must be sqlite:///FILE or postgresql://USER@HOST/DATABASE")
    try:
        url = make_url(text)
        url = url.set(drivername=DRIVERS[url.get_backend_name()])
    except (ArgumentError, KeyError):
        raise wrong from None
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise wrong
    return url


def url_without_password(text: str) -> str:
    """Return a database URL without its password, for logs. Raises SettingsError."""
    url = parse_url(text)
    if url.get_backend_name() == "sqlite":
        assert url.database is not None, "parse_url"
        return url.database
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def _engine(url: URL, lock_timeout_s: float) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(
            url,
            pool_size=2 * READERS,
            max_overflow=0,
            pool_timeout=lock_timeout_s,
            pool_pre_ping=True,
            connect_args={"connect_timeout": int(lock_timeout_s)},
        )
    assert url.database is not None, "parse_url"
    file = Path(url.database)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.touch(mode=0o600)  # private conversations; SQLite's other files copy the mode
    engine = create_engine(
        url,
        pool_size=READERS + 1,
        max_overflow=0,
        pool_timeout=lock_timeout_s,
        connect_args={"timeout": lock_timeout_s},
    )
    event.listen(engine, "connect", lambda connection, _: _prepare(connection, lock_timeout_s))
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, lock_timeout_s: float) -> None:
    connection.isolation_level = None  # `_begin` starts transactions, not the driver
    _enter_wal(connection, lock_timeout_s)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _enter_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switch the database to WAL mode, which is necessary once for a new database. Retries until
    `timeout_s`, because SQLite does not wait for the lock here."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(WAL_PAUSE_S)


def _begin(connection: Connection) -> None:
    """Begin a transaction. A transaction that writes takes the write lock now, because it may be
    unable to get the lock after it has read."""
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
