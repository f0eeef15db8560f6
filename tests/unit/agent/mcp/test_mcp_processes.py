"""MCP servers that run as processes, good and bad ones."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers.mcp_servers import (
    call,
    connecting,
    is_alive,
    process_entry,
    tool_named,
    until,
)


async def test_tools_are_offered_under_their_servers_name_and_called() -> None:
    async with connecting({"my server": process_entry("honest")}) as servers:
        (status,) = servers.status()
        assert status.connected and status.tools == len(servers.tools()) and not status.last_error
        add = tool_named(servers, "my_server_add")
        assert add.function.description == "Add two numbers."
        assert add.function.parameters is not None
        assert set(add.function.parameters["properties"]) == {"a", "b"}
        assert not add.function.strict
        assert (add.info.kind, add.info.source) == ("custom", "mcp")
        assert (add.info.server, add.info.label) == ("my server", "my server: add")
        assert add.reads_only and not tool_named(servers, "my_server_fail").reads_only

        outcome = await call(servers, "my_server_add", a=1, b=2)
        assert outcome.result == "3" and not outcome.is_error
        assert outcome.activity.status == "success"


async def test_results_are_texts_of_all_parts() -> None:
    async with connecting({"s": process_entry("honest")}) as servers:
        assert (await call(servers, "s_mixed")).result == "one\n[Image: image/png]\ntwo"
        assert (await call(servers, "s_picture")).result == "[Image: image/png]"
        long = (await call(servers, "s_long", size=300_000)).result
        assert isinstance(long, str) and len(long) < 263_000
        assert long.endswith("[cut: 37856 of 300000 bytes are not shown]")


async def test_a_failing_tool_and_wrong_arguments_are_error_results() -> None:
    async with connecting({"s": process_entry("honest")}) as servers:
        failed = await call(servers, "s_fail")
        assert failed.is_error and failed.activity.status == "error"
        wrong = await call(servers, "s_add", a="x")
        assert wrong.is_error
        assert (await call(servers, "s_add", a=1, b=1)).result == "2"


async def test_a_server_sees_no_variables_except_the_harmless_and_its_own() -> None:
    os.environ["SECRET_OF_THE_TEST"] = "1"
    try:
        entry = process_entry("honest", env={"MINE": "1"})
        async with connecting({"s": entry}) as servers:
            names = str((await call(servers, "s_environment")).result).split(",")
    finally:
        del os.environ["SECRET_OF_THE_TEST"]
    assert "MINE" in names and "PATH" in names and "SECRET_OF_THE_TEST" not in names


async def test_added_tools_appear_without_a_new_connection() -> None:
    async with connecting({"s": process_entry("honest")}) as servers:
        pid = (await call(servers, "s_pid")).result
        await call(servers, "s_grow")
        await until(lambda: any(tool.info.name == "s_grown" for tool in servers.tools()))
        assert (await call(servers, "s_grown")).result == "grown"
        assert (await call(servers, "s_pid")).result == pid


async def test_a_cancelled_call_returns_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    async with connecting({"s": process_entry("honest")}) as servers:
        task = asyncio.create_task(
            call(servers, "s_wait", started=str(started), cancelled=str(cancelled))
        )
        await until(started.exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(cancelled.exists)
        assert (await call(servers, "s_add", a=1, b=1)).result == "2"


async def test_a_call_without_an_answer_times_out_and_is_cancelled(tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    async with connecting({"s": process_entry("honest")}, timeout_s=3) as servers:
        outcome = await call(servers, "s_wait", started=str(started), cancelled=str(cancelled))
        assert outcome.is_error and outcome.result == "the tool did not answer within 3 s"
        await until(cancelled.exists)
        assert servers.status()[0].connected


async def test_calls_beyond_the_limit_wait_for_others() -> None:
    async with connecting({"s": process_entry("honest")}, max_concurrent_calls=2) as servers:
        outcomes = await asyncio.gather(*(call(servers, "s_crowd") for _ in range(8)))
        assert {outcome.result for outcome in outcomes} <= {"1", "2"}


async def test_a_server_that_dies_loses_its_own_tools_only_and_comes_back() -> None:
    entries = {"fragile": process_entry("fragile"), "honest": process_entry("honest")}
    async with connecting(entries) as servers:
        before = (await call(servers, "fragile_pid")).result
        outcome = await call(servers, "fragile_die")
        assert outcome.is_error and "the connection to the server 'fragile' ended" in str(
            outcome.result
        )
        await until(lambda: servers.status()[0].last_error is not None)
        error = servers.status()[0].last_error
        assert error is not None and "fatal: out of luck" in error and "status 3" in error
        assert (await call(servers, "honest_add", a=1, b=2)).result == "3"
        await until(lambda: servers.status()[0].connected)
        assert (await call(servers, "fragile_pid")).result != before


async def test_a_killed_server_fails_its_calls_at_once(tmp_path: Path) -> None:
    started, cancelled = tmp_path / "started", tmp_path / "cancelled"
    async with connecting({"s": process_entry("honest")}) as servers:
        pid = int(str((await call(servers, "s_pid")).result))
        task = asyncio.create_task(
            call(servers, "s_wait", started=str(started), cancelled=str(cancelled))
        )
        await until(started.exists)
        os.kill(pid, signal.SIGKILL)
        assert (await task).is_error


async def test_bad_servers_disable_only_themselves() -> None:
    kinds = ("broken", "garbage", "silent", "honest")
    entries = {kind: process_entry(kind) for kind in kinds}
    entries["missing"] = {"command": "/no/such/command"}
    entries["nowhere"] = process_entry("honest", cwd="/no/such/folder")
    async with connecting(entries, timeout_s=12) as servers:
        status = {server.name: server for server in servers.status()}
        assert [name for name, server in status.items() if server.connected] == ["honest"]
        assert {tool.info.server for tool in servers.tools()} == {"honest"}
        errors = {name: str(server.last_error) for name, server in status.items()}
    assert "cannot find my configuration" in errors["broken"]
    assert "its standard output is not JSON-RPC" in errors["garbage"]
    assert "no answer within 12 s" in errors["silent"]
    assert "/no/such/command: No such file or directory" in errors["missing"]
    assert "/no/such/folder: No such file or directory" in errors["nowhere"]


async def test_an_answer_of_100_mb_ends_the_connection_and_not_ours() -> None:
    async with connecting({"huge": process_entry("huge")}) as servers:
        outcome = await call(servers, "huge_flood")
        assert outcome.is_error
        await until(lambda: servers.status()[0].last_error is not None)
        assert "sent a message of more than 8 MiB" in str(servers.status()[0].last_error)
        await until(lambda: servers.status()[0].connected)


async def test_results_are_not_checked_against_the_servers_own_patterns() -> None:
    async with connecting({"huge": process_entry("huge")}) as servers:
        outcome = await call(servers, "huge_trap")
        assert outcome.result == '{"x":"' + "a" * 64 + 'b"}'


async def test_a_thousand_tools_have_a_thousand_names() -> None:
    async with connecting({"many": process_entry("many")}) as servers:
        names = {tool.info.name for tool in servers.tools()}
        assert len(names) == 1000 and "many_tool_999" in names
        assert servers.tools() is servers.tools()


async def test_a_server_that_refuses_to_end_is_killed_with_its_children() -> None:
    async with connecting({"s": process_entry("stubborn")}) as servers:
        pids = [int(pid) for pid in str((await call(servers, "s_pids")).result).split()]
        assert all(map(is_alive, pids))
    await until(lambda: not any(map(is_alive, pids)))


async def test_servers_die_with_a_parent_that_is_killed() -> None:
    program = (
        "import asyncio, sys\n"
        "from tests.support.servers.mcp_servers import call, connecting, process_entry\n"
        "async def main():\n"
        "    async with connecting({'s': process_entry('stubborn')}) as servers:\n"
        "        print((await call(servers, 's_pids')).result, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
    assert len(pids) == 2 and all(map(is_alive, pids))
    parent.kill()
    await parent.wait()
    await until(lambda: not any(map(is_alive, pids)))


async def test_unregistered_tools_are_connected_and_not_offered() -> None:
    entries = {"s": process_entry("honest")}
    async with connecting(entries, auto_register_tools=False) as servers:
        assert servers.status()[0].connected and servers.status()[0].tools > 0
        assert servers.tools() == ()
        assert "add" in servers.tool_names("s")


async def test_a_call_of_a_server_that_is_gone_is_an_error_result() -> None:
    async with connecting({"s": process_entry("honest")}) as servers:
        add = tool_named(servers, "s_add")
    outcome = await add._call({"a": 1, "b": 2})
    assert outcome.is_error and "the server 's' is not connected" in outcome.text
