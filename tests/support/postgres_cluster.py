"""A private PostgreSQL cluster for the tests: Debian's package, a temporary folder, a Unix
socket."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg

USER = "penstock"
# If root runs the tests, the server is started as one of these users.
SERVER_USERS = ("postgres", "nobody")
START_ATTEMPTS = 300


def postgres_programs() -> Path | None:
    """Return the folder of initdb and postgres of the newest installed version."""
    found = shutil.which("postgres")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def running_cluster(programs: Path) -> Iterator[str]:
    """Run a cluster until the block ends; yield the URL of its empty database."""
    owner = _owner()
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    try:
        if owner is not None:
            shutil.chown(folder, owner)
        data = folder / "data"
        initdb = ["-U", USER, "-A", "trust", "-N", "--no-locale", "-E", "UTF8", "-D", str(data)]
        subprocess.run(
            [programs / "initdb", *initdb], user=owner, cwd=folder, check=True, capture_output=True
        )
        with (folder / "log").open("wb") as log:
            plain = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "autovacuum=off"]
            options = ["-k", str(folder), "-c", "listen_addresses=", *plain]
            server = subprocess.Popen(
                [programs / "postgres", "-D", str(data), *options],
                user=owner,
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        try:
            url = f"postgresql://{USER}@/postgres?host={quote(str(folder), safe='')}"
            _wait_ready(url, server, folder / "log")
            yield url
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> str | None:
    """Return the user that runs the server, since PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in SERVER_USERS if name in names)


def _wait_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(START_ATTEMPTS):
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            try:
                server.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            break
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}")
