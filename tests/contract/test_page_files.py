"""The files of the web page: `/ui`, its assets, their headers, and a server without a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.api.http.content_coding import preferred_coding
from penstock.api.observability.metrics import Metrics
from penstock.api.route_table import page
from penstock.config import ServerSettings
from tests.support.servers.http_server import Serving, serving

INDEX = "<!doctype html><title>the page</title>"
SCRIPT = "console.log(1)"
ASSET = "/ui/assets/index-Ab1_-z.js"
PLAIN = {"accept-encoding": "identity"}


@pytest.fixture(autouse=True)
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replace the built page by a small one."""
    folder = tmp_path / "dist"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    script = folder / "assets/index-Ab1_-z.js"
    script.write_text(SCRIPT)
    script.with_name(script.name + ".br").write_bytes(b"in brotli")
    script.with_name(script.name + ".gz").write_bytes(b"in gzip")
    (folder / "assets/.hidden.js").write_text("hidden")
    (folder / "assets/map.bin").write_text("of no known type")
    (tmp_path / "secret.js").write_text("secret")
    monkeypatch.setattr(page, "BUILT", folder)
    yield folder


async def raw(server: Serving, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and the body as sent, without decoding it."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with server.http.stream("GET", path, headers=given) as answer:
        body = b"".join([piece async for piece in answer.aiter_raw()])
        return answer.status_code, dict(answer.headers), body


async def test_ui_redirects_to_the_page() -> None:
    async with serving() as server:
        answer = await server.http.get("/ui", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, "ui/")
        assert (await server.http.get("/ui", follow_redirects=True)).text == INDEX


@pytest.mark.parametrize("path", ["/ui/", "/ui/chats/chat_1", "/ui/models", "/ui/never/seen"])
async def test_every_address_of_the_page_has_the_page(path: str) -> None:
    async with serving() as server:
        answer = await server.http.get(path)
    assert (answer.status_code, answer.text) == (200, INDEX)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"


async def test_a_known_page_is_not_sent_again() -> None:
    async with serving() as server:
        tag = (await server.http.get("/ui/")).headers["etag"]
        again = await server.http.get("/ui/models", headers={"if-none-match": tag})
        other = await server.http.get("/ui/", headers={"if-none-match": '"another"'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert other.text == INDEX


@pytest.mark.parametrize("path", ["/ui/", ASSET])
async def test_the_policy_allows_this_server_only(path: str) -> None:
    async with serving() as server:
        headers = (await server.http.get(path, headers=PLAIN)).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in headers["content-security-policy"]


async def test_assets_are_kept_for_ever_in_the_best_coding() -> None:
    async with serving() as server:
        for accepted, coding, body in [
            ("gzip, deflate, br, zstd", "br", b"in brotli"),
            ("gzip, br;q=0", "gzip", b"in gzip"),
            ("identity", None, SCRIPT.encode()),
        ]:
            status, headers, sent = await raw(server, ASSET, accept_encoding=accepted)
            assert (status, headers.get("content-encoding"), sent) == (200, coding, body)
            assert headers["content-type"] == "text/javascript; charset=utf-8"
            assert headers["cache-control"] == "public, max-age=31536000, immutable"
            assert headers["vary"] == "accept-encoding"
            assert int(headers["content-length"]) == len(body)


async def test_head_has_the_headers_of_get() -> None:
    async with serving() as server:
        for path in ("/ui/", ASSET):
            head = await server.http.head(path, headers=PLAIN)
            get = await server.http.get(path, headers=PLAIN)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize(
    "path",
    [
        "/ui/assets/../../secret.js",
        "/ui/assets/..%2f..%2fsecret.js",
        "/ui/assets/%2e%2e/%2e%2e/secret.js",
        "/ui/assets/..%5c..%5csecret.js",
        "/ui/assets//etc/passwd",
        "/ui/assets/.hidden.js",
        "/ui/assets/map.bin",
        "/ui/assets/index-Ab1_-z.js.br",
        "/ui/assets/index-Ab1_-z.js%00",
        "/ui/assets/gone.js",
        "/ui/assets/",
        "/ui/../secret.js",
        "/ui/secret.js",
        "/ui/favicon.ico",
    ],
)
async def test_other_files_are_not_served(path: str) -> None:
    async with serving() as server:
        status, _, body = await raw(server, path)
    assert status == 404, body


@pytest.mark.parametrize("path", ["/ui/api", "/ui/api/nothing", "/ui/api/chats.txt/x"])
async def test_unknown_routes_of_the_page_are_errors(path: str) -> None:
    async with serving() as server:
        answer = await server.http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")


async def test_the_page_cannot_be_written() -> None:
    async with serving() as server:
        for path in ("/ui", "/ui/", ASSET):
            assert (await server.http.post(path)).status_code == 405


async def test_no_ui_serves_no_page() -> None:
    async with serving(settings=ServerSettings(no_ui=True)) as server:
        for path in ("/ui", "/ui/", "/ui/models", ASSET):
            answer = await server.http.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found")
        assert (await server.http.get("/health")).status_code == 200


async def test_a_server_without_a_built_page_says_how_to_build_it(built: Path) -> None:
    (built / "index.html").unlink()
    async with serving() as server:
        answer = await server.http.get("/ui/")
        (built / "index.html").write_text(INDEX)
        assert (await server.http.get("/ui/")).text == INDEX
    assert answer.status_code == 503
    assert "make ui" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert "script-src" not in answer.headers["content-security-policy"]


async def test_metrics_leave_the_page_out() -> None:
    async with serving(metrics=Metrics()) as server:
        for path in ("/ui", "/ui/", "/ui/models", ASSET, "/ui/assets/gone.js"):
            await raw(server, path)
        text = (await server.http.get("/metrics")).text
    assert "/ui" not in text


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"br", b"br"),
        (b"GZIP", b"gzip"),
        (b"*", b"br"),
        (b"*;q=0, gzip", b"gzip"),
        (b"br;q=0.0, gzip;q=0.5", b"gzip"),
        (b"br;q=0,gzip;q=0", None),
        (b"br;q=x", b"br"),
        (b"zstd", None),
        (b"", None),
    ],
)
def test_the_best_accepted_coding_is_chosen(header: bytes, coding: bytes | None) -> None:
    assert preferred_coding([(b"accept-encoding", header)], (b"br", b"gzip")) == coding


def test_without_the_header_the_content_is_sent_as_it_is() -> None:
    assert preferred_coding([(b"accept", b"br")], (b"br", b"gzip")) is None
