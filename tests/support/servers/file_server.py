"""A file server on loopback with range requests, which can break off, stall and count."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Files:
    """The served files and the received requests. `cut_after`: bytes after which the first answers
    to a path break off, one entry each. A path in `stalled` stops half way until `released`.
    `refused`: path -> HTTP status. `promised_bytes`: path -> sum of the lengths of its answers."""

    content: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    half_sent: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    ignore_ranges: bool = False
    refused: dict[str, int] = field(default_factory=dict)
    promised_bytes: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    url: str = ""

    def add(self, path: str, data: bytes, kind: str = "application/octet-stream") -> None:
        self.content[path] = (kind, data)

    def ranges(self, path: str) -> list[str | None]:
        return [asked for requested, asked in self.requests if requested == path]


@contextmanager
def serving(files: Files) -> Iterator[Files]:
    """Serve `files` until the block ends; sets `files.url`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"files": files}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    files.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield files
    finally:
        files.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def publish(hub: Files, repository: str, content: dict[str, bytes], revision: str = "main") -> None:
    """Publish a repository in the format of the Hugging Face Hub: large files by SHA-256, small
    ones as git blobs."""
    listings: dict[str, list[dict[str, object]]] = {"": []}
    for name, data in content.items():
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": blob}
        if name.endswith((".safetensors", ".gguf")):
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
        folder = name.rpartition("/")[0].lstrip(".")
        if folder not in listings:
            listings[""].append({"type": "directory", "path": folder, "oid": ""})
        listings.setdefault(folder, []).append(entry)
        hub.add(f"/{repository}/resolve/{revision}/{name}", data)
    for folder, listing in listings.items():
        path = f"/api/models/{repository}/tree/{revision}/{folder}".rstrip("/")
        hub.add(path, json.dumps(listing).encode())


class _Handler(BaseHTTPRequestHandler):
    files: Files
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        files, path = self.files, self.path.partition("?")[0]
        asked = self.headers.get("range")
        files.requests.append((path, asked))
        files.authorizations.append(self.headers.get("authorization"))
        if path in files.refused or path not in files.content:
            self.send_error(files.refused.get(path, 404))
            return
        kind, data = files.content[path]
        wanted = "0-" if files.ignore_ranges or not asked else asked.removeprefix("bytes=")
        first, _, last = wanted.partition("-")
        start, end = int(first), min(int(last) + 1, len(data)) if last else len(data)
        if start >= len(data) > 0:
            self.send_response(416)
            self.send_header("content-range", f"bytes */{len(data)}")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        part = start > 0 or end < len(data)
        self.send_response(206 if part else 200)
        if part:
            self.send_header("content-range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("content-type", kind)
        self.send_header("content-length", str(end - start))
        files.promised_bytes[path] += end - start
        self.end_headers()
        self._send(path, data[start:end])

    def _send(self, path: str, data: bytes) -> None:
        cuts = self.files.cut_after.get(path)
        if cuts:
            self.wfile.write(data[: cuts.pop(0)])
            self.close_connection = True
            return
        if path in self.files.stalled:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.files.half_sent.set()
            self.files.released.wait()
            self.close_connection = True
            return
        self.wfile.write(data)
