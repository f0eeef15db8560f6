"""The route table, the OpenAPI document and its explorer, which needs no network."""

from __future__ import annotations

import re

import openai
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from penstock import __version__
from penstock.api.docs.openapi import build_document
from penstock.api.route_table.operation import JSON
from penstock.api.route_table.table import OPERATIONS
from tests.support.openapi_checks import validator_of_type
from tests.support.servers.http_server import MODEL, serving

DOCUMENT = "/api-doc/openapi.json"


def test_each_operation_has_a_route_and_an_id_of_its_own():
    assert len({o.route for o in OPERATIONS}) == len({o.id for o in OPERATIONS}) == len(OPERATIONS)


def test_description_is_valid_openapi():
    document = build_document(OPERATIONS)
    OpenAPIV31SpecValidator(document).validate()
    assert document["openapi"] == "3.1.0" and document["info"]["version"] == __version__ == "0.9.1"


def test_every_json_body_has_an_example_that_matches_its_schema():
    for operation in OPERATIONS:
        with_body = operation.request is not None and operation.request_media == JSON
        assert (operation.example is not None) == with_body, operation.id
        if with_body:
            validator_of_type(operation.request.__name__).validate(operation.example)


@pytest.mark.parametrize(
    "id", ["createChatCompletion", "createCompletion", "createResponse", "createMessage"]
)
async def test_the_examples_of_the_explorer_are_answered(id):
    (operation,) = (o for o in OPERATIONS if o.id == id)
    async with serving() as server:
        answer = await server.http.post(operation.path, json=operation.example)
    assert answer.status_code == 200


async def test_description_is_served_and_revalidated():
    async with serving() as server:
        answer = await server.http.get(DOCUMENT)
        again = await server.http.get(DOCUMENT, headers={"if-none-match": answer.headers["etag"]})
    assert answer.json() == build_document(OPERATIONS)
    assert answer.headers["content-type"] == "application/json"
    assert (again.status_code, again.content) == (304, b"")


async def test_explorer_loads_everything_from_this_server():
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


async def test_explorer_redirects_a_trailing_slash():
    async with serving() as server:
        answer = await server.http.get("/docs/")
        page = await server.http.get("/docs/", follow_redirects=True)
    assert (answer.status_code, answer.headers["location"]) == (307, "../docs")
    assert page.url.path == "/docs" and page.status_code == 200


async def test_official_client_gets_the_described_responses():
    async with (
        serving() as server,
        openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="any", http_client=server.http
        ) as client,
    ):
        card = await client.models.retrieve(MODEL)
        assert card.id == MODEL
