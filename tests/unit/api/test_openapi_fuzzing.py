"""schemathesis drives the served description against the running server: no 500, no answer outside
its schema. `pytest --described-examples 1000` makes a longer run of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.api.docs.openapi import build_document
from tests.support.servers.http_server import serving, spoken

pytestmark = pytest.mark.slow

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server in a thread of its own: what drives it is not asynchronous."""
    found: list[str] = []
    ready, done = threading.Event(), None

    async def serve() -> None:
        nonlocal done
        done = (asyncio.get_running_loop(), asyncio.Event())
        async with serving(spoken("a", "b")) as server:
            found.append(server.url)
            ready.set()
            await done[1].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield found[0]
    assert done is not None
    done[0].call_soon_threadsafe(done[1].set)
    thread.join()


OPERATIONS = [
    found.ok()
    for found in schemathesis.openapi.from_dict(build_document()).get_all_operations()
    if found.ok().path != "/v1/models/unload"  # the other ones need the model
]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_no_answer_is_outside_the_description(operation, mode, url, request) -> None:
    @hypothesis.settings(
        max_examples=request.config.getoption("--described-examples"),
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        derandomize=True,
        database=None,
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def drive(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=url, checks=CHECKS, timeout=10)

    try:
        drive()
    except hypothesis.errors.Unsatisfiable:
        pytest.skip("nothing of this request can be wrong")
