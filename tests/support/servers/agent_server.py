"""A server whose model writes one text per round, with real tools, a real sandbox and a real store.

    async with agent_server([call("service_execute_python", code="1 + 1"), "It is 2."]) as server:

The scripted engine is the only double.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from penstock.agent import AgentLoop
from penstock.agent.attachments import Attachments
from penstock.agent.server_tools import ServerTools
from penstock.api.observability.agent_observer import AgentRecorder
from penstock.api.observability.metrics import Metrics
from penstock.config import AgentSettings, ServerSettings
from penstock.fetch import AllowList, Fetcher
from tests.support.agent_loops import call, scripted_engine, scripted_generator
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving
from tests.support.stores import opened, store_settings

PYTHON_AND_SHELL: Final = AgentSettings(
    enable_code_execution=True, enable_shell=True, code_exec_python=sys.executable
)
LOOPBACK: Final = ("127.0.0.1",)


@dataclass(frozen=True)
class AgentServing:
    """A running server with server tools. `engine`: the scripted engine, which records prompts."""

    serving: Serving
    tools: ServerTools
    engine: ScriptedEngine

    @property
    def prompts(self) -> list[str]:
        """The prompt of each round so far, as text."""
        tokenizer = tiny_tokenizer()
        return [tokenizer.decode(request.token_ids) for request in self.engine.requests]


def python(code: str, *outputs: str) -> str:
    """Return the text of a call of the Python tool."""
    return call("service_execute_python", code=code, outputs=[{"name": n} for n in outputs])


def shell(*commands: str) -> str:
    """Return the text of a call of the shell tool."""
    return call("service_shell", commands=list(commands))


@asynccontextmanager
async def agent_server(
    texts: Sequence[str],
    agent: AgentSettings = PYTHON_AND_SHELL,
    *,
    folder: Path | None = None,
    settings: ServerSettings = ServerSettings(fetch_allow=LOOPBACK),  # noqa: B008
) -> AsyncIterator[AgentServing]:
    """Run a server until the block ends. `folder`: of the store, to run a second server over it."""
    with TemporaryDirectory(prefix="penstock-agent-") as made:
        async with opened(store_settings(folder or Path(made))) as store:
            metrics = Metrics()
            tools = ServerTools(
                agent,
                store.files,
                store.approvals,
                store.skills,
                fetch_allow=settings.fetch_allow,
                observer=AgentRecorder(metrics.agent, None),
            )
            await tools.start()
            engine = scripted_engine(texts)
            loop = AgentLoop(
                scripted_generator(engine),
                Attachments(store.files, Fetcher(AllowList(settings.fetch_allow))),
                sessions=store.sessions,
                tools=tools.provider,
            )
            whole = msgspec.structs.replace(settings, agent=agent)
            try:
                async with serving(
                    models={MODEL: loop}, settings=whole, metrics=metrics, store=store, tools=tools
                ) as server:
                    yield AgentServing(server, tools, engine)
            finally:
                await tools.close()
