"""One API process over a scripted engine, each pinned to its own core, for `bench.api`."""

from __future__ import annotations

import array
import contextlib
import os
import re
import select
import subprocess
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from bench.harness.scripted_engine import Script, ScriptedCall
from penstock.api.serving.model_control import ModelStates, WorkerFailed, from_worker_decoder
from penstock.api.serving.sockets import bind_socket
from penstock.api.serving.tasks import ApiTask, ModelTask, WorkerTask
from penstock.config import (
    AgentSettings,
    EngineSettings,
    ModelSettings,
    ServerSettings,
    StoreSettings,
    read_environment,
)
from penstock.engine.processes.fleet import ModelState
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.model_loader import load_text_parts
from penstock.text import Tokenizer, load_tokenizer

SERVER_CORE, OTHER_CORE = 0, 1
NUM_WORDS = 4093
CONTEXT_TOKENS = 8192
FIRST_STEP_S = 0.001
POLL_S = 0.2


class Cores(NamedTuple):
    """The cores of the API process, and those of the engine and the load client."""

    server: frozenset[int]
    others: frozenset[int]


class Call(NamedTuple):
    """A tool call of the scripted model. `marker`: text in the prompts that it answers with it."""

    marker: str
    text: str


PINNED = Cores(frozenset({SERVER_CORE}), frozenset({OTHER_CORE}))


class ApiServer:
    """The API process and its scripted engine, as a context manager.

    - `agent`: the settings of server tools.
    - `cores`: of the API process and of the others.
    - `engine`: the module of the engine process.
    - `call`: the tool call of the engine `bench.agent.calling_engine`.
    """

    def __init__(
        self,
        model: str,
        python: str,
        log: bool = True,
        *,
        agent: AgentSettings = AgentSettings(),  # noqa: B008
        cores: Cores = PINNED,
        engine: str = "bench.harness.scripted_engine",
        call: Call | None = None,
    ) -> None:
        self._cores = cores
        self._engine_module = engine
        self._settings = EngineSettings(model=model)
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        place = self._folder.name
        store = StoreSettings(f"sqlite:///{place}/store.db", f"{place}/blobs", f"{place}/skills")
        self._server = ServerSettings(
            "127.0.0.1", disable_access_log=not log, store=store, agent=agent
        )
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        environment = read_environment()
        hub = HubAccess(token=environment.hf_token, cache=environment.hf_home / "hub")
        parts = load_text_parts(resolve_model(model, environment.home, hub))
        tokenizer = load_tokenizer(parts)
        self._vocab_size = tokenizer.vocab_size
        self.words = _words(tokenizer)
        self._call = ScriptedCall()
        if call is not None:
            ids = (tuple(tokenizer.encode(text)) for text in call)
            self._call = ScriptedCall(*ids)
        self._model_id = parts.model_id

    def __enter__(self) -> ApiServer:
        os.sched_setaffinity(0, self._cores.others)
        folder = Path(self._folder.name)
        self._stamps = folder / "stamps"
        script = Script(
            self._model_id,
            self._vocab_size,
            CONTEXT_TOKENS,
            list(self.words.values()),
            FIRST_STEP_S,
            self._call,
        )
        path = str(folder / "engine.sock")
        self._engine = self._start(
            self._engine_module, path, str(self._stamps), cores=self._cores.others
        )
        self._write_line(self._engine, msgspec.json.encode(script))
        self._bound = bind_socket("127.0.0.1", 0)
        self.address: tuple[str, int] = self._bound.getsockname()[:2]
        fd = self._bound.fileno()
        model = ModelTask(ModelSettings(self._settings, id=self._model_id), path)
        task = WorkerTask(ApiTask((model,), None, self._server), fd)
        self._api = self._start("penstock.api.serving.worker", cores=self._cores.server, pass_fd=fd)
        self._write_line(self._api, msgspec.json.encode(task))
        self._write_line(
            self._api, msgspec.json.encode(ModelStates({self._model_id: ModelState("loaded")}))
        )
        said = from_worker_decoder.decode(self._read_line(self._api))
        if isinstance(said, WorkerFailed):
            raise RuntimeError(said.text)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            with contextlib.suppress(BrokenPipeError):
                _input(process).close()
        for process in self._processes.values():
            process.wait(30)
        self._bound.close()
        self._folder.cleanup()

    def pace(self, step_s: float) -> None:
        """Set the time between two steps of the engine."""
        self._write_line(self._engine, str(step_s).encode())

    def cpu_s(self) -> float:
        """Return the CPU time that the API process has used."""
        return self._scheduled(0)

    def waited_s(self) -> float:
        """Return the time in which the API process was ready to run but waited for its core."""
        return self._scheduled(1)

    def raise_priority(self) -> None:
        """Let the API process preempt everything else on its core. Needs root."""
        os.sched_setscheduler(self._api.pid, os.SCHED_FIFO, os.sched_param(1))

    def rss_mib(self) -> float:
        text = Path(f"/proc/{self._api.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def pid(self) -> int:
        return self._api.pid

    def stamps(self) -> tuple[array.array[float], array.array[float]]:
        """End the engine; return the start times of all steps and the times at which they were
        sent."""
        _input(self._engine).close()
        self._engine.wait(30)
        both = array.array("d", self._stamps.read_bytes())
        steps = len(both) // 2
        return both[:steps], both[steps:]

    def _scheduled(self, field: int) -> float:
        tasks = Path(f"/proc/{self._api.pid}/task").iterdir()
        return sum(int((t / "schedstat").read_text().split()[field]) for t in tasks) / 1e9

    def _start(
        self, module: str, *arguments: str, cores: frozenset[int], pass_fd: int | None = None
    ) -> subprocess.Popen[bytes]:
        path = Path(tempfile.gettempdir()) / f"{module}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [self._python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=() if pass_fd is None else (pass_fd,),
            )
        os.sched_setaffinity(process.pid, cores)
        self._processes[path] = process
        return process

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the process's next line. Raises RuntimeError if any of the processes has ended."""
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], POLL_S)[0]:
            for log, one in self._processes.items():
                if one.poll() is not None:
                    self.__exit__()
                    raise RuntimeError(f"a process has ended; see {log}")
        return process.stdout.readline()

    def _write_line(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        _input(process).write(line + b"\n")
        _input(process).flush()


def _words(tokenizer: Tokenizer) -> dict[str, int]:
    """Return tokens that are a word after a space: in a stream of them each one is recognizable."""
    words = {}
    for token_id in range(tokenizer.vocab_size):
        text = tokenizer.token_bytes(token_id)
        if re.fullmatch(rb" [a-z]+", text):
            words[text.decode()] = token_id
        if len(words) == NUM_WORDS:
            break
    return words


def _input(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin
