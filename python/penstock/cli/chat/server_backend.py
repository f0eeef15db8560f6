"""Answers the turns of a terminal chat with a server that is already running."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import msgspec

from penstock.base.errors import Conflict, InvalidRequest, NotFound, ServiceError, Unavailable
from penstock.cli.chat.backend import ActiveModel, Decision, ModelChoice
from penstock.cli.chat.completion_body import completion_body
from penstock.cli.chat.completion_events import CompletionEvents, sse_frames
from penstock.cli.chat.conversation import Turn
from penstock.dialog import Event

DEFAULT_URL: Final = "http://127.0.0.1:1234"
PROBE_S: Final = 1.0
"""Seconds in which a server on this machine must answer the question whether it is there."""
CONNECT_S: Final = 10.0
ANY: Final = "default"
"""The name of the default model in lists of models."""
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_NO_TOOLS: Final[Mapping[str, Any]] = {"search": False, "code": False, "shell": False}


class ServedModelInfo(msgspec.Struct, kw_only=True):
    """A model in the description of a server."""

    id: str
    status: str = "loaded"
    modalities_in: tuple[str, ...] = ()
    modalities_out: tuple[str, ...] = ("text",)
    sampling: dict[str, Any] = {}
    adapters: tuple[str, ...] = ()


class ServerInfo(msgspec.Struct, kw_only=True):
    """The description of a server: the answer of `/ui/api/info`."""

    version: str
    models: tuple[ServedModelInfo, ...]
    default_model: str | None = None
    tools: dict[str, Any] = {}

    @property
    def texts(self) -> tuple[ServedModelInfo, ...]:
        """The models that write text; modalities of unloaded models are not known."""
        return tuple(
            one for one in self.models if not one.modalities_out or "text" in one.modalities_out
        )


async def find_server(url: str, seconds: float = PROBE_S) -> ServerInfo | None:
    """Return the description of the Penstock server at `url`; None if there is none."""
    try:
        async with _client(url, seconds) as client:
            return await _info(client)
    except (httpx.HTTPError, httpx.InvalidURL):
        return None


async def connect(url: str, model: str | None) -> ServerBackend:
    """Return the backend of the server at `url`. `model`: None for the server's default. Raises
    Unavailable if no Penstock server is there, and the errors of `ServerBackend.use`."""
    info = await find_server(url, CONNECT_S)
    if info is None:
        raise Unavailable(
            f"no Penstock server answers at {url}; start one with `penstock serve`, or leave"
            " --url out to run the model in this process"
        )
    backend = ServerBackend(url, info)
    try:
        await backend.use(model or _first_model(info))
    except ServiceError:
        await backend.close()
        raise
    return backend


class ServerBackend:
    """Sends the turns of a chat to a server as chat completion requests."""

    def __init__(self, url: str, info: ServerInfo) -> None:
        self._url = url.rstrip("/")
        self._info = info
        self._name = ""
        self._client = _client(url, CONNECT_S)

    @property
    def model(self) -> ActiveModel:
        served = self._served(self._name)
        return ActiveModel(
            name=served.id,
            place=self._url,
            defaults={key: value for key, value in served.sampling.items() if value is not None},
            adapters=served.adapters,
            tools=tuple(name for name in _NO_TOOLS if self._info.tools.get(name)),
            transcribes=served.modalities_in == ("audio",),
        )

    @property
    def choices(self) -> Sequence[ModelChoice]:
        return [ModelChoice(served.id, served.status) for served in self._info.texts]

    async def run(self, turn: Turn) -> AsyncGenerator[Event, None]:
        body = completion_body(turn, self._name)
        state = CompletionEvents()
        try:
            async with self._client.stream(
                "POST", "/v1/chat/completions", json=body, timeout=_patient()
            ) as answer:
                await _check(answer)
                async for name, data in sse_frames(answer.aiter_bytes()):
                    for event in state.add(name, data):
                        yield event
        except httpx.HTTPError as error:
            raise self._unavailable(error) from None
        if not state.has_ended:
            raise Unavailable(f"the server at {self._url} ended the answer too early")

    async def use(self, name: str) -> None:
        served = self._served(name)
        if served.status != "loaded":
            await self._post("/v1/models/reload", {"model_id": served.id})
        self._info = await _info(self._client) or self._info
        self._name = served.id

    async def decide(
        self, id: str, decision: Decision, message: str | None, *, remember: bool
    ) -> None:
        body = {"decision": decision, "message": message, "remember_for_session": remember}
        await self._post(f"/v1/agent/approvals/{id}", body)

    async def close(self) -> None:
        await self._client.aclose()

    def _served(self, name: str) -> ServedModelInfo:
        for served in self._info.models:
            if served.id == name:
                return served
        names = ", ".join(choice.name for choice in self.choices)
        raise NotFound(f"the server at {self._url} has no model {name!r}, only {names}")

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        try:
            await _check(await self._client.post(path, json=body, timeout=_patient()))
        except httpx.HTTPError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: httpx.HTTPError) -> Unavailable:
        why = str(error) or type(error).__name__
        return Unavailable(f"the server at {self._url} does not answer: {why}")


def _client(url: str, seconds: float) -> httpx.AsyncClient:
    """Return a client for a server. Proxies are not used for servers on this machine."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(f"--url must be like {DEFAULT_URL}, not {url!r}", field="url")
    own = parts.hostname in _LOOPBACK
    return httpx.AsyncClient(base_url=url, timeout=seconds, trust_env=not own)


def _patient() -> httpx.Timeout:
    """Return the time limits of requests that may take long: the model decides."""
    return httpx.Timeout(None, connect=CONNECT_S)


async def _info(client: httpx.AsyncClient) -> ServerInfo | None:
    """Return the description of a server; without its web page, what `/v1/models` tells. None if
    the server is not Penstock."""
    answer = await client.get("/ui/api/info")
    if answer.is_success:
        return _decoded(answer.content)
    listed = await client.get("/v1/models")
    if not listed.is_success:
        return None
    try:
        cards = [card for card in listed.json()["data"] if card["adapter_generation"] is None]
        models = [(card["id"], card["status"]) for card in cards if card["id"] == card["root"]]
    except (ValueError, KeyError, TypeError):
        return None
    served = tuple(ServedModelInfo(id=id, status=status) for id, status in models if id != ANY)
    return ServerInfo(version="", models=served)


def _decoded(data: bytes) -> ServerInfo | None:
    try:
        return msgspec.json.decode(data, type=ServerInfo)
    except msgspec.MsgspecError:
        return None


def _first_model(info: ServerInfo) -> str:
    texts = info.texts
    names = [served.id for served in texts]
    if info.default_model in names:
        return str(info.default_model)
    loaded = [served.id for served in texts if served.status == "loaded"]
    if not names:
        raise Conflict("the server has no model that writes text")
    return (loaded or names)[0]


async def _check(answer: httpx.Response) -> None:
    """Raise the ServiceError that an answer reports."""
    if answer.is_success:
        return
    await answer.aread()
    try:
        error = answer.json()["error"]
        message = error["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered with status {answer.status_code}"
    failed = ServiceError(str(message))
    failed.status = answer.status_code
    raise failed
