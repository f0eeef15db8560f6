"""The served description: it tells of every route, is valid, and its explorer needs no network."""

from __future__ import annotations

import re

import openai
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from penstock import __version__
from penstock.api.app import all_routes
from penstock.api.docs.examples import EXAMPLES
from penstock.api.docs.openapi import build_document
from penstock.api.docs.operation import JSON
from penstock.api.docs.operations import OPERATIONS
from tests.support.openapi_checks import validator_of_type
from tests.support.servers.http_server import MODEL, serving

DOCUMENT = "/api-doc/openapi.json"


async def test_every_route_is_described_and_every_description_is_a_route():
    async with serving(adapter_updates=True) as server:
        routes = all_routes(server.services)
    registered = [(m, r.path) for r in routes for m in r.methods if m != "HEAD"]
    assert sorted(registered) == sorted((o.method, o.path) for o in OPERATIONS)
    assert len({o.id for o in OPERATIONS}) == len(OPERATIONS)


def test_description_is_valid_openapi():
    document = build_document()
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"] == "3.1.0" and document["info"]["version"] == __version__ == "0.9.1"


def test_every_body_of_json_has_an_example_that_is_as_described():
    with_body = [o for o in OPERATIONS if o.request is not None and o.request_media == JSON]
    assert {operation.id for operation in with_body} == set(EXAMPLES)
    for operation in with_body:
        validator_of_type(operation.request.__name__).validate(EXAMPLES[operation.id])


@pytest.mark.parametrize(
    "id", ["createChatCompletion", "createCompletion", "createResponse", "createMessage"]
)
async def test_the_explorer_is_answered_what_it_begins_with(id):
    (operation,) = (o for o in OPERATIONS if o.id == id)
    async with serving() as server:
        answer = await server.http.post(operation.path, json=EXAMPLES[id])
    assert answer.status_code == 200


async def test_description_is_served_and_revalidated():
    async with serving() as server:
        answer = await server.http.get(DOCUMENT)
        again = await server.http.get(DOCUMENT, headers={"if-none-match": answer.headers["etag"]})
    assert answer.json() == build_document()
    assert answer.headers["content-type"] == "application/json"
    assert (again.status_code, again.content) == (304, b"")


async def test_explorer_is_served_whole_from_this_server():
    async with serving() as server:
        page = await server.http.get("/docs")
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'") and "//" not in page.text
        names = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
        assert len(names) == 3
        for name in names:
            asset = await server.http.get(f"/{name}")
            assert asset.status_code == 200 and len(asset.content) > 100
            assert "max-age" in asset.headers["cache-control"]
            known = {"if-none-match": asset.headers["etag"]}
            assert (await server.http.get(f"/{name}", headers=known)).status_code == 304
        assert (await server.http.get("/docs/index.html")).status_code == 404
        assert (await server.http.get("/docs/..%2f__init__.py")).status_code == 404


async def test_explorer_is_found_with_a_slash_at_its_end():
    async with serving() as server:
        answer = await server.http.get("/docs/")
        page = await server.http.get("/docs/", follow_redirects=True)
    assert (answer.status_code, answer.headers["location"]) == (307, "../docs")
    assert page.url.path == "/docs" and page.status_code == 200


async def test_official_client_meets_the_described_answers():
    async with (
        serving() as server,
        openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", http_client=server.http
        ) as client,
    ):
        card = await client.models.retrieve(MODEL)
        assert card.id == MODEL
