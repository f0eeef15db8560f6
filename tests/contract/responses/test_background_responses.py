"""Background responses: they outlive their clients, can be cancelled, and never hang."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from penstock.api.codecs.responses import Resource, ResponseIdentity, decode
from penstock.api.responses.response_runs import ResponseRuns
from penstock.base.errors import EngineFault, Unavailable
from penstock.dialog import (
    PartEnded,
    PartStarted,
    RunEnded,
    RunFailed,
    RunStarted,
    Text,
    TextDelta,
    TurnEnded,
)
from penstock.store import StoredResponse
from tests.support.servers.http_server import CREATED, MODEL, USAGE
from tests.support.servers.responses_server import (
    URL,
    a_store,
    answering,
    create,
    events_of,
    failing,
    get,
)
from tests.support.stores import MovableClock

pytestmark = pytest.mark.usefixtures("each_database")

BACKGROUND = {"background": True}


class Gated:
    """A run that waits before its first token, and once more after some text."""

    def __init__(self) -> None:
        self.start = asyncio.Event()
        self.half = asyncio.Event()  # its first text has been consumed
        self.finish = asyncio.Event()

    def __call__(self, request):
        yield RunStarted(request.model or "", CREATED, 3)
        yield self.start
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "Hel")
        self.half.set()
        yield self.finish
        yield TextDelta(0, 0, "lo")
        yield PartEnded(0, 0, Text("Hello"))
        yield TurnEnded(0, "stop", USAGE)
        yield RunEnded("completed", USAGE)


async def until_status(server, id, *statuses):
    while (body := await get(server, id))["status"] not in statuses:
        await asyncio.sleep(0.001)
    return body


async def test_it_is_queued_then_in_progress_then_completed():
    script = Gated()
    async with answering(script) as server:
        body = await create(server, **BACKGROUND)
        assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
        assert (await get(server, body["id"]))["status"] == "queued"
        script.start.set()
        working = await until_status(server, body["id"], "in_progress")
        assert working["output"] == [] and working["usage"] is None
        script.finish.set()
        done = await until_status(server, body["id"], "completed")
        await create(server, previous_response_id=body["id"])
    assert done["output_text"] == "Hello" and done["usage"]["total_tokens"] == 11
    assert [len(request.messages) for request in server.loop.requests] == [1, 3]


async def test_it_cannot_be_continued_before_it_has_ended():
    script = Gated()
    async with answering(script) as server:
        id = (await create(server, **BACKGROUND))["id"]
        error = (await create(server, 400, previous_response_id=id))["error"]
        script.start.set(), script.finish.set()
    assert error["param"] == "previous_response_id" and "queued" in error["message"]


async def test_first_token_is_noticed_at_once_without_a_reader_of_the_stream():
    async with answering() as server:
        await create(server, **BACKGROUND)
        await create(server)
    assert [request.streamed for request in server.loop.requests] == [True, False]


async def test_its_failure_is_kept():
    async with answering(failing(EngineFault("the engine failed"))) as server:
        id = (await create(server, **BACKGROUND))["id"]
        body = await until_status(server, id, "failed")
    assert body["error"]["code"] == "engine_fault"


async def test_cancel_stops_the_work_and_is_idempotent():
    script = Gated()
    script.start.set()
    async with answering(script) as server:
        id = (await create(server, **BACKGROUND))["id"]
        await until_status(server, id, "in_progress")
        await script.half.wait()
        first = (await server.http.post(f"{URL}/{id}/cancel")).json()
        assert server.loop.running == 0 and server.loop.cut_short == 1
        again = (await server.http.post(f"{URL}/{id}/cancel")).json()
        assert first == again == await get(server, id)
    assert (first["status"], first["output_text"]) == ("cancelled", "Hel")


async def test_what_has_finished_is_not_cancelled():
    script = Gated()
    script.start.set(), script.finish.set()
    async with answering(script) as server:
        id = (await create(server, **BACKGROUND))["id"]
        done = await until_status(server, id, "completed")
        assert (await server.http.post(f"{URL}/{id}/cancel")).json() == done


async def test_only_background_responses_can_be_cancelled():
    async with answering() as server:
        id = (await create(server))["id"]
        answer = await server.http.post(f"{URL}/{id}/cancel")
    assert answer.status_code == 400 and "background" in answer.json()["error"]["message"]


async def test_delete_stops_the_work():
    script = Gated()
    async with answering(script) as server:
        id = (await create(server, **BACKGROUND))["id"]
        assert (await server.http.delete(f"{URL}/{id}")).status_code == 200
        assert server.loop.running == 0
        await get(server, id, 404)


async def test_a_streamed_one_goes_on_without_its_client():
    script = Gated()
    script.start.set()
    async with answering(script) as server:
        body = {"input": "hi", "stream": True} | BACKGROUND
        id = ""
        async with server.http.stream("POST", URL, json=body) as answer:
            async for line in answer.aiter_lines():
                if not id and "resp_" in line:
                    id = "resp_" + line.split("resp_")[1][:32]
                if "Hel" in line:
                    break
        assert server.loop.running == 1
        script.finish.set()
        assert (await until_status(server, id, "completed"))["output_text"] == "Hello"
        assert server.loop.cut_short == 0


async def test_a_streamed_one_that_is_cancelled_ends_its_stream():
    script = Gated()
    script.start.set()
    text, cancelled = "", None
    async with answering(script) as server:
        body = {"input": "hi", "stream": True} | BACKGROUND
        async with server.http.stream("POST", URL, json=body) as answer:
            async for piece in answer.aiter_text():
                text += piece
                if '"Hel"' in text and cancelled is None:
                    id = "resp_" + text.split("resp_")[1][:32]
                    cancelled = (await server.http.post(f"{URL}/{id}/cancel")).json()
    events = events_of(text)
    begin = [(event["type"], event["response"]["status"]) for event in events[:3]]
    assert begin == [
        ("response.created", "queued"),
        ("response.queued", "queued"),
        ("response.in_progress", "in_progress"),
    ]
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"] == cancelled and cancelled["status"] == "cancelled"


async def test_a_cancel_that_meets_its_end_changes_nothing(monkeypatch):
    script, saved = Gated(), asyncio.Event()
    script.start.set(), script.finish.set()
    async with a_store() as store, answering(script, store=store) as server:
        update = store.responses.update

        async def update_slowly(*args, status, **fields):
            await update(*args, status=status, **fields)
            if status == "completed" and not saved.is_set():
                saved.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(store.responses, "update", update_slowly)
        body = {"input": "hi", "stream": True} | BACKGROUND
        streaming = asyncio.create_task(server.http.post(URL, json=body))
        await saved.wait()
        (id,) = server.services.runs._detached
        await server.services.runs.cancel(id)
        last = events_of((await streaming).text)[-1]
        assert last["response"] == await get(server, id)
    assert last["type"] == "response.completed"


@asynccontextmanager
async def two_processes(script, clock=None):
    """Run two API processes that share only the store's data."""
    async with (
        a_store(clock) as store,
        answering(script, store=store) as one,
        answering(script, store=store) as two,
    ):
        yield one, two, store


async def test_any_process_may_cancel_and_the_owner_stops_at_once():
    script = Gated()
    script.start.set()
    async with two_processes(script) as (one, two, _):
        id = (await create(one, **BACKGROUND))["id"]
        await until_status(two, id, "in_progress")
        await script.half.wait()
        body = (await two.http.post(f"{URL}/{id}/cancel")).json()
        assert (body["status"], body["output_text"]) == ("cancelled", "Hel")
        assert one.loop.running == 0 and one.loop.cut_short == 1


async def test_any_process_may_delete_and_the_owner_stops():
    script = Gated()
    script.start.set()
    async with two_processes(script) as (one, two, store):
        id = (await create(one, **BACKGROUND))["id"]
        await until_status(two, id, "in_progress")
        assert (await two.http.delete(f"{URL}/{id}")).json()["deleted"]
        await one.until(lambda: one.loop.running == 0)
        assert one.loop.cut_short == 1 and await store.responses.get(id) is None


async def test_any_process_may_read_and_continue():
    script = Gated()
    script.start.set(), script.finish.set()
    async with two_processes(script) as (one, two, _):
        id = (await create(one, **BACKGROUND))["id"]
        await until_status(two, id, "completed")
        await create(two, previous_response_id=id)
    assert len(two.loop.requests[0].messages) == 3


def orphan(status):
    """Return a response whose process died."""
    id = "resp_" + "1" * 32
    resource = Resource(ResponseIdentity(id, MODEL, decode(b'{"input":"hi"}').echoed, True))
    resource.status = status
    return StoredResponse(
        id=id,
        created_at=CREATED,
        status=status,
        owner="api_dead",
        body=resource.body(),
        background=True,
        heartbeat_at=CREATED,
    )


@pytest.mark.parametrize("status", ["queued", "in_progress"])
async def test_what_a_dead_process_worked_on_has_failed(status, monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.WATCHED_S", 0.0)
    clock = MovableClock(CREATED)
    async with a_store(clock) as store, answering(store=store) as server:
        await store.responses.create(orphan(status))
        assert (await get(server, orphan(status).id))["status"] == status
        clock.now += 60
        body = await get(server, orphan(status).id)
    assert body["status"] == "failed" and body["error"]["code"] == "unavailable"


async def test_clock_that_is_put_forward_ends_no_response(monkeypatch):
    clock = MovableClock(CREATED)
    script = Gated()
    async with two_processes(script, clock) as (one, two, store):
        id = (await create(one, **BACKGROUND))["id"]
        for _ in range(2):
            clock.now += 3600  # before the owner's next heartbeat
            assert (await get(two, id))["status"] == "queued"
        # The owner's clock is an hour behind, but its heartbeats are read.
        monkeypatch.setattr("penstock.api.responses.response_runs.WATCHED_S", 0.05)
        for _ in range(4):
            await asyncio.sleep(0.03)
            clock.now -= 3599
            await store.responses.heartbeat((await store.responses.get(id)).owner)
            clock.now += 3600
            assert (await get(two, id))["status"] == "queued"
        script.start.set(), script.finish.set()
        await until_status(two, id, "completed")


async def test_work_that_is_stopped_before_its_first_step_is_told_so():
    async def events():
        raise AssertionError("never begun")
        yield

    async with a_store() as store:
        runs = ResponseRuns(store)
        resource = Resource(ResponseIdentity("resp_1", MODEL, decode(b'{"input":"hi"}').echoed))
        reader = runs.detach(events(), resource, logged=True)
        await runs.close()
        told = await asyncio.wait_for(anext(reader), 5)
        assert isinstance(told, RunFailed) and told.status == 503
        assert not runs._detached and not runs._written
        with pytest.raises(Unavailable):
            runs.detach(events(), resource, logged=True)


async def test_cancel_does_not_wait_for_a_process_that_does_not_answer(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.CANCEL_TIMEOUT_S", 0.0)
    async with a_store() as store, answering(store=store) as server:
        await store.responses.create(orphan("in_progress"))
        body = (await server.http.post(f"{URL}/{orphan('queued').id}/cancel")).json()
    assert body["status"] == "cancelled"


async def test_an_owner_that_lives_keeps_its_work(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr("penstock.api.responses.response_runs.HEARTBEAT_INTERVAL_S", 0.0)
    clock = MovableClock(CREATED)
    script = Gated()
    async with two_processes(script, clock) as (one, two, store):
        id = (await create(one, **BACKGROUND))["id"]
        clock.now += 3600
        while (await store.responses.get(id)).heartbeat_at < clock.now:
            await asyncio.sleep(0.001)
        assert (await get(two, id))["status"] == "queued"
        script.start.set(), script.finish.set()
        await until_status(two, id, "completed")


async def test_what_runs_when_the_server_stops_has_failed():
    async with a_store() as store:
        async with answering(Gated(), store=store) as server:
            id = (await create(server, **BACKGROUND))["id"]
        stored = await store.responses.get(id)
    assert stored.status == "failed" and b"stopped" in stored.body


async def test_a_deleted_one_stays_deleted_when_its_work_ends(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.POLL_INTERVAL_S", 3600.0)
    script = Gated()
    script.start.set()
    async with two_processes(script) as (one, two, store):
        id = (await create(one, **BACKGROUND))["id"]
        await until_status(two, id, "in_progress")
        assert await store.responses.delete(id)
        script.finish.set()
        await one.until(lambda: one.loop.running == 0)
        assert await store.responses.get(id) is None


async def test_its_end_is_written_when_the_store_answers_again(monkeypatch):
    monkeypatch.setattr("penstock.api.responses.response_runs.RETRY_INTERVAL_S", 0.001)
    script = Gated()
    async with a_store() as store, answering(script, store=store) as server:
        id = (await create(server, **BACKGROUND))["id"]
        update = store.responses.update
        failures = [EngineFault("locked")] * 4

        async def locked(*args, **fields):
            if failures:
                raise failures.pop()
            return await update(*args, **fields)

        monkeypatch.setattr(store.responses, "update", locked)
        script.start.set(), script.finish.set()
        assert (await until_status(server, id, "completed", "failed"))["status"] == "completed"
