"""Functions in namespaces, as coding agents send them: the model sees `crm.orders`, the client sees
`orders` of `crm`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.api.codecs.responses import decode
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    GenerateRequest,
    PartEnded,
    PartStarted,
    RunEnded,
    RunStarted,
    ToolCall,
    TurnEnded,
)
from tests.support.servers.http_server import CREATED, USAGE
from tests.support.servers.responses_server import FUNCTION, answering, create, stream

ORDERS: dict[str, Any] = {"type": "function", "name": "orders", "description": "Lists orders."}
CRM: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [ORDERS, {"type": "function", "name": "weather"}],
}


def calling(name: str) -> Any:
    def script(request: GenerateRequest) -> Iterator[Event]:
        yield RunStarted(request.model or "", CREATED, 3)
        yield PartStarted(0, 0, "tool_call", "call_1", name)
        yield ArgumentsDelta(0, 0, "{}")
        yield PartEnded(0, 0, ToolCall("call_1", name, "{}"))
        yield TurnEnded(0, "tool_calls", USAGE)
        yield RunEnded("completed", USAGE)

    return script


def decoded(**fields: Any) -> GenerateRequest:
    return decode(json.dumps({"input": "hi"} | fields).encode()).request


def refused(*tools: Any, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decoded(tools=tools, **fields)
    return caught.value


def test_the_model_sees_qualified_names_and_what_a_namespace_says_of_itself_once() -> None:
    tools = decoded(tools=[CRM, FUNCTION]).tools
    assert [tool.name for tool in tools] == ["crm.orders", "crm.weather", "weather"]
    assert [tool.description for tool in tools] == ["Customers.\nLists orders.", None, None]


def test_a_choice_names_the_function_as_the_model_knows_it() -> None:
    choice = {"type": "function", "name": "crm.orders"}
    assert decoded(tools=[CRM], tool_choice=choice).tool_policy.names == ("crm.orders",)
    error = refused(CRM, tool_choice={"type": "function", "name": "orders"})
    assert error.field == "tool_choice.name"


@pytest.mark.parametrize(
    ("tool", "field", "said"),
    [
        (CRM | {"name": "a b"}, "tools[0].name", "must be 1 to 128 letters"),
        (CRM | {"tools": 3}, "tools[0].tools", "must be an array of objects"),
        (CRM | {"tools": [{"type": "custom"}]}, "tools[0].tools[0].type", 'must be "function"'),
        (CRM | {"tools": [CRM]}, "tools[0].tools[0].type", 'not "namespace"'),
        (CRM | {"tools": [ORDERS, ORDERS]}, "tools", '"crm.orders" more than once'),
    ],
)
def test_what_is_wrong_in_a_namespace_is_named(tool: Any, field: str, said: str) -> None:
    error = refused(tool)
    assert error.field == field and said in error.message


async def test_a_call_carries_its_namespace_and_comes_back_with_it() -> None:
    async with answering(calling("crm.orders")) as server:
        client = server.openai.responses
        tools: Any = [CRM, FUNCTION]
        first = await client.create(model="default", input="hi", tools=tools)
        (call,) = first.output
        assert call.type == "function_call"
        assert (call.namespace, call.name) == ("crm", "orders")
        result: Any = {"type": "function_call_output", "call_id": "call_1", "output": "none"}
        items: Any = [{"role": "user", "content": "hi"}, call, result]
        await client.create(model="default", input=items, tools=tools)
        await client.create(
            model="default", input=[result], previous_response_id=first.id, tools=tools
        )
    by_items, by_id = (request.messages for request in server.loop.requests[1:])
    assert by_items == by_id
    assert by_items[1].parts == (ToolCall("call_1", "crm.orders", "{}"),)


async def test_streams_carry_it_and_the_resource_repeats_the_namespaces() -> None:
    async with answering(calling("crm.orders")) as server:
        events = await stream(server, tools=[CRM])
    (added,) = (e["item"] for e in events if e["type"] == "response.output_item.added")
    (arguments,) = (e for e in events if e["type"] == "response.function_call_arguments.done")
    assert (added["namespace"], added["name"], arguments["name"]) == ("crm", "orders", "orders")
    last = events[-1]["response"]
    assert last["output"][0] == added | {"arguments": "{}", "status": "completed"}
    assert last["tools"] == [CRM]


async def test_other_functions_have_no_namespace_even_if_their_names_look_alike() -> None:
    async with answering(calling("crm.other")) as server:
        named = {"type": "function", "name": "crm.other"}
        answer = await create(server, tools=[CRM, named])
    assert answer["output"][0]["name"] == "crm.other"
    assert "namespace" not in answer["output"][0]
