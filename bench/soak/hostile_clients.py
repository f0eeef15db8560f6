"""Hostile clients: bytes that are not HTTP, clients that disconnect or are slow, values at and
beyond every limit, and bodies made to break parsers, schemas and grammars."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Final

from bench.soak.raw_http import Await, HalfClose, Pause, Reset, Step, request
from bench.soak.target_server import Inconclusive, TargetServer
from bench.soak.valid_clients import JSON, PARAMETERS, SCHEMA, Scenario

ROUTES: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/files",
    "/v1/skills",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/agent/approvals/x",
    "/v1/models/status",
    "/v1/models/tune",
)
REFUSED: Final = (400, 404, 405, 409, 413, 415, 422)
TAKEN: Final = (200, *REFUSED)
CHAT: Final[dict[str, Any]] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 3,
    "stream": True,
}
LONG: Final = {"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
HEAD: Final = b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\n"
BODY: Final = json.dumps(CHAT).encode()
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 129, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400),
    *(0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), "", " ", "\0", "\ud800", "a" * 5000),
    *([], [None], [[]], [""], ["x"] * 100, {}, {"": 0}, {"type": "x"}, {"type": None}, [{}], [1.5]),
    *("default", "auto", "none", "required", "../../etc/passwd", "%00", "http://127.0.0.1:1/x"),
)
FIELDS: Final = (
    *("model", "messages", "prompt", "input", "max_tokens", "max_output_tokens", "temperature"),
    *(
        "top_p",
        "top_k",
        "min_p",
        "n",
        "best_of",
        "stop",
        "stop_sequences",
        "seed",
        "stream",
        "echo",
    ),
    *("logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "suffix"),
    *("repetition_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "system", "tools"),
    *("dry_sequence_breakers", "response_format", "grammar", "tool_choice", "adapter", "text"),
    *("session_id", "enable_thinking", "reasoning_effort", "chat_template_kwargs", "instructions"),
    *("previous_response_id", "store", "background", "include", "reasoning", "truncation"),
    *("metadata", "files", "web_search_options", "agent_permission", "truncate_sequence"),
    *("encoding_format", "dimensions", "lora_name", "lora_path", "expected_generation", "thinking"),
    *("ignore_eos", "functions", "function_call", "purpose", "decision", "model_id"),
)
BASES: Final[dict[str, dict[str, Any]]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 3},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 3, "store": False},
    "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/v1/embeddings": {"model": "embedding", "input": "Hi"},
    "/v1/load_lora_adapter": {"lora_name": "fuzz", "lora_path": "none", "model": "text"},
    "/v1/unload_lora_adapter": {"lora_name": "fuzz", "model": "text"},
    "/v1/agent/approvals/x": {"decision": "deny"},
    "/v1/models/status": {"model_id": "text"},
    "/v1/models/tune": {"model_id": "absent"},
}
LINES: Final = (
    b"\r\n\r\n",
    b"\0" * 64,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /%zz%00%2e%2e/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\nOrigin: x\r\nConnection: close\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET http://elsewhere/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    b"GET / HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nx-request-id: \x01\x02\xff\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\n: empty\r\n\r\n",
    b"GET / HTTP/1.1\r\n folded\r\n\r\n",
    HEAD + b"Content-Length: -1\r\n\r\n",
    HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
    HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 70_000 + b"\r\n",
    HEAD + b"Transfer-Encoding: gzip\r\n\r\nabc",
    HEAD + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
)


async def lines(target: TargetServer, draw: random.Random) -> None:
    """Send bytes that are not a request, or an unusual one."""
    for line in draw.sample(LINES, 6):
        await target.talk(line, Pause(0.05), HalfClose(), timeout_s=8)


async def noise(target: TargetServer, draw: random.Random) -> None:
    """Send a valid request with some bytes changed, cut or doubled."""
    data = bytearray(request("POST", draw.choice(ROUTES[:6]), BODY))
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(data))
        match draw.randrange(3):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                del data[at : at + draw.randint(1, 20)]
            case _:
                data[at:at] = draw.randbytes(draw.randint(1, 20))
    await target.talk(bytes(data), Pause(0.02), HalfClose(), timeout_s=8)


async def pipelined(target: TargetServer, draw: random.Random) -> None:
    """Pipeline several requests on one connection: each must be answered, in order."""
    one = b"GET /health HTTP/1.1\r\nHost: soak\r\n\r\n"
    chat = b"%sContent-Length: %d\r\n\r\n%s" % (HEAD, len(BODY), BODY)
    count = draw.randint(2, 20)
    sent = b"".join(draw.choice([one, chat]) if count < 6 else one for _ in range(count - 1))
    found = await target.talk(sent + request("GET", "/health"))
    if len(found) == count and all(answer.whole for answer in found):
        return
    if any(answer.status == 429 for answer in found):
        raise Inconclusive
    target.fail_missing(f"{len(found)} answers to {count} requests on one connection")


async def slow(target: TargetServer, draw: random.Random) -> None:
    """Send a request in small pieces: it must be answered normally."""
    whole = request("POST", "/v1/chat/completions", CHAT)
    cuts = sorted(draw.sample(range(1, len(whole)), 6))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    steps: list[Step] = []
    for piece in pieces:
        steps += [piece, Pause(draw.random() / 2)]
    found = await target.talk(*steps)
    if [answer.status for answer in found] not in ([200], [429]):
        target.fail_missing(f"a slow request was answered {found}")


async def unfinished(target: TargetServer, draw: random.Random) -> None:
    """Stop in the middle of a request."""
    whole = request("POST", draw.choice(ROUTES), BODY)
    ends: list[tuple[Step, ...]] = [(HalfClose(),), (Pause(draw.random()), Reset()), (Reset(),)]
    await target.talk(whole[: draw.randrange(1, len(whole))], *draw.choice(ends), timeout_s=15)


async def vanishing(target: TargetServer, draw: random.Random) -> None:
    """Disconnect at some point of a long answer."""

    async def one() -> None:
        body: dict[str, Any] = LONG | {"n": draw.randint(1, 3), "stream": draw.random() < 0.8}
        path = "/v1/completions"
        if draw.random() < 0.4:
            path, body = "/v1/responses", {"input": "Hi", "max_output_tokens": 900, "stream": True}
        sent = request("POST", path, body | {"store": False})
        waits: list[Step] = [Pause(draw.random()), Await(draw.randint(1, 9000))]
        await target.talk(sent, draw.choice(waits), Reset(), timeout_s=draw.uniform(0.1, 3))

    await asyncio.gather(*(one() for _ in range(draw.randint(1, 12))))


async def unread(target: TargetServer, draw: random.Random) -> None:
    """Half-close and still read the answer, possibly in one large read."""
    sent = request("POST", "/v1/chat/completions", CHAT)
    await target.talk(sent, HalfClose(), timeout_s=15)
    await target.talk(sent, Pause(1 + draw.random()), timeout_s=15)


async def values(target: TargetServer, draw: random.Random) -> None:
    """Put unexpected values into one or two fields."""
    path = draw.choice(sorted(BASES))
    base = BASES[path]
    names = draw.choices([*base, *FIELDS], k=draw.randint(1, 2))
    body = base | {name: draw.choice(VALUES) for name in names}
    if draw.random() < 0.3:
        body |= {"messages": [_odd_message(draw)]}
    await _fuzzed(target, path, json.dumps(body).encode())


def _odd_message(draw: random.Random) -> Any:
    part = {"type": draw.choice(["text", "file", "image_url", "tool_result", "input_audio", 3])}
    part |= {draw.choice(["text", "file", "image_url", "tool_use_id"]): draw.choice(VALUES)}
    role = draw.choice(["user", "assistant", "tool", "system", "developer", "function", "x", None])
    message = {"role": role, "content": draw.choice([[part], [[part]], *VALUES])}
    return message | {draw.choice(["name", "tool_calls", "tool_call_id"]): draw.choice(VALUES)}


async def broken_json(target: TargetServer, draw: random.Random) -> None:
    """Send bodies that are not JSON, or far too much of it."""
    bodies = (
        b"",
        b"{",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf" + BODY,
        b"[" * 100_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        b'{"prompt": ' + b"9" * 100_000 + b"}",
        b'{"prompt": 1e999, "max_tokens": 1E-999}',
        b'{"prompt": "a", "prompt": "b", "max_tokens": 2}',
        b'{"prompt": "\\ud800", "max_tokens": 2}',
        b'{"prompt": "\x00", "max_tokens": 2}',
        b'{"prompt": "\xc3\x28", "max_tokens": 2}',
        b'{"prompt": "' + b"\\u0000" * 200 + b'", "max_tokens": 2}',
        b'{"prompt": [' + b"1," * 200_000 + b'1], "max_tokens": 1}',
        b'{"prompt": "' + b"word " * 400_000 + b'", "max_tokens": 1}',
        b"{%s}" % b",".join(b'"k%d":0' % k for k in range(50_000)),
    )
    await _fuzzed(target, draw.choice(ROUTES[:6]), draw.choice(bodies))


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def _schema_bomb(draw: random.Random) -> dict[str, Any]:
    bombs: tuple[dict[str, Any], ...] = (
        _nested(200),
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"enum": [f"value {k}" for k in range(20_000)]},
        {"allOf": [SCHEMA] * 200},
        {"anyOf": [{"anyOf": [SCHEMA] * 30}] * 30},
        {"type": "string", "pattern": "(a{1,999}){1,999}"},
        {"type": "string", "pattern": "(((((a+)+)+)+)+)+$"},
        {"type": "string", "minLength": 10**9},
        {"type": "array", "items": SCHEMA, "minItems": 10**9, "maxItems": 10**9},
        {"type": "object", "patternProperties": {"(": {}}},
        {"type": ["string", "nonsense"]},
        {"const": "\ud800"},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "object", "properties": {f"k{k}": {"type": "string"} for k in range(3000)}},
    )
    return draw.choice(bombs)


def _grammar_bomb(draw: random.Random) -> dict[str, Any]:
    bombs = (
        ("regex", "(" * 5000),
        ("regex", "((a{0,500}){0,500}){0,500}"),
        ("regex", "(?=a)b"),
        ("regex", "[\\u0000-\\U0010ffff]{100000}"),
        ("lark", "start: start start | start"),
        ("lark", "start: a\n" + "\n".join(f"a{k}: a{k + 1}" for k in range(3000))),
        ("lark", 'start: "a"{1000000}'),
        ("lark", "start: /(a|aa)+$/ " * 500),
        ("llguidance", '{"grammars": [{}]}'),
        ("llguidance", '{"grammars": ' + "[" * 5000),
        ("json_schema", '{"$ref": "http://127.0.0.1:1/x"}'),
        ("gbnf", "root ::= root"),
    )
    kind, value = draw.choice(bombs)
    return {"type": kind, "value": value}


async def bombs(target: TargetServer, draw: random.Random) -> None:
    """Send schemas and grammars that would compile for ever, alone and in functions."""
    schema, body = _schema_bomb(draw), {**CHAT}
    match draw.randrange(4):
        case 0:
            form = {"name": "x", "schema": schema, "strict": draw.random() < 0.5}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        case 1:
            body["grammar"] = _grammar_bomb(draw)
        case 2:
            function = {"name": "f", "parameters": schema, "strict": True}
            body |= {"tools": [{"type": "function", "function": function}]}
            body["tool_choice"] = "required"
        case _:
            function = {"name": "f", "parameters": PARAMETERS}
            body |= {"tools": [{"type": "function", "function": function}] * 300}
    await _fuzzed(target, "/v1/chat/completions", json.dumps(body).encode())


async def big(target: TargetServer, draw: random.Random) -> None:
    """Send bodies over the limit, and invalid multipart forms."""
    form = {"Content-Type": "multipart/form-data; boundary=cut"}
    if draw.random() < 0.2:
        head = HEAD + b"Content-Length: 60000000\r\n\r\n"
        await target.talk(head + b"[" * 1_000_000, Pause(0.2), Reset(), timeout_s=10)
        return
    parts = (
        b"--cut",
        b"--cut--",
        b"--cut\r\n\r\n\r\n" * 2000 + b"--cut--\r\n",
        b'--cut\r\ncontent-disposition: form-data; name="file"\r\n\r\n' + draw.randbytes(2000),
        b'--cut\r\ncontent-disposition: form-data; name="files"; filename="s.zip"\r\n\r\n'
        + b"PK\x03\x04"
        + draw.randbytes(500)
        + b"\r\n--cut--\r\n",
        b"--cut\r\n" + b"h: v\r\n" * 20_000,
    )
    for path in ("/v1/files", "/v1/skills"):
        await target.ask("POST", path, draw.choice(parts), REFUSED, form)


async def wrong_routes(target: TargetServer, draw: random.Random) -> None:
    """Request routes, methods and ids that do not exist."""
    tails = (
        "",
        "/",
        "//",
        "/..",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/x?limit=-1",
        "?limit=1e9&after=%00",
    )
    path = draw.choice([*ROUTES, "/v1/responses/x", "/v1/sessions/x", "/v1/files/x"])
    method = draw.choice(["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "POST"])
    await target.ask(method, path + draw.choice(tails), expect=TAKEN)


async def _fuzzed(target: TargetServer, path: str, body: bytes) -> None:
    """Send a well-formed request with an arbitrary body, and disconnect if it runs for long."""
    await target.talk(request("POST", path, body, JSON), timeout_s=12)


SCENARIOS: dict[str, tuple[int, Scenario]] = {
    "lines": (5, lines),
    "noise": (8, noise),
    "pipelined": (3, pipelined),
    "slow": (2, slow),
    "unfinished": (5, unfinished),
    "vanishing": (5, vanishing),
    "unread": (1, unread),
    "values": (16, values),
    "broken json": (6, broken_json),
    "bombs": (4, bombs),
    "big": (2, big),
    "wrong routes": (4, wrong_routes),
}
