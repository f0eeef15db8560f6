"""The engine process: `python -m penstock.engine.processes.process SOCKET`.

It reads its task as one line of JSON from standard input (`supervisor.EngineTask`), writes status
lines of JSON to standard output (`supervisor.StatusLine`), and serves on SOCKET. Logs and progress
go to standard error.

Any further line of input drains the process: it accepts no new connection and ends when the last
one is closed. When standard input closes, the process ends at once, and removes SOCKET and its
folder if that is empty, because the parent process may have been killed.

It ignores the signals that stop a server. systemd, container runtimes, `timeout` and Ctrl-C send
them to every process, and the parent process handles them by draining.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import logging
import os
import signal
import sys
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NoReturn

import msgspec

from penstock.base.errors import ModelError
from penstock.base.logs import configure_logging
from penstock.base.output import take_standard_output
from penstock.base.stack_dumps import STANDARD_ERROR, dump_stacks_on_signal
from penstock.engine.processes.supervisor import EngineTask, StatusLine
from penstock.engine.types import AdapterState, EngineInfo
from penstock.engine.watchdog import Watchdog

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from penstock.engine.ipc.server import EngineServer


def main(socket_path: str) -> int:
    gc.disable()  # a load makes no garbage; collections would cost a tenth of the start
    from penstock.engine.core import EngineCore
    from penstock.engine.ipc.server import EngineServer
    from penstock.engine.load import load_core
    from penstock.engine.saved_weights import SavedWeights

    configure_logging()
    dump_stacks_on_signal()
    say = partial(_report_status, take_standard_output())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as lines:  # reads no byte beyond the line
        line = lines.readline()
    if not line.endswith(b"\n"):  # the server ended before it gave a task
        return 0
    task = msgspec.json.decode(line, type=EngineTask)
    orders = _ControlInput(socket_path)
    threading.Thread(target=orders.follow, daemon=True).start()
    saved = SavedWeights(Path(socket_path).parent)
    try:
        core = load_core(saved.restored(task.settings), task.limit_bytes)
    except (ModelError, MemoryError, OSError) as error:
        say("failed", _why(error))
        return 1
    for source in task.adapters:  # requests wait until their adapter is read
        core.add_adapter(source).add_done_callback(_warn_if_lost)
    if isinstance(core, EngineCore):
        core.weights.saved = saved
    gc.freeze()  # loaded objects stay: no collection walks them during a step
    gc.enable()
    say("report", f"memory: {core.report}")
    watch = Watchdog(STANDARD_ERROR)
    watch.start()
    server = EngineServer(core, socket_path, watch)
    orders.pass_to(server)
    say("ready", info=core.info)
    server.run()
    core.close()
    return 0


def _why(error: Exception) -> str:
    """Return the reason of a failed load, for the operator. An OSError usually means that memory is
    short although the plan found enough: this process has a limit, or another process took the
    memory."""
    if isinstance(error, ModelError):
        return str(error)
    if isinstance(error, OSError) and error.errno != errno.ENOMEM:
        return f"the model cannot be loaded: {error}"
    return (
        "the system gives this process too little memory for the model (see `ulimit -v`); end"
        " other programs, or take a smaller kv_cache_memory_mb, max_model_len or max_num_seqs"
    )


def _warn_if_lost(loaded: Future[AdapterState]) -> None:
    error = loaded.exception()
    if error is not None:
        log.error("an adapter is lost: %s", error)


def _report_status(
    output: BinaryIO,
    event: Literal["report", "ready", "failed"],
    text: str = "",
    info: EngineInfo | None = None,
) -> None:
    output.write(msgspec.json.encode(StatusLine(event, text, info)) + b"\n")
    output.flush()


class _ControlInput:
    """Reads the lines of standard input that follow the task, also while the model is loading."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._lock = threading.Lock()
        self._server: EngineServer | None = None
        self._drains = False

    def pass_to(self, server: EngineServer) -> None:
        """Set the server to drain or stop, and drain it if that has been requested already."""
        with self._lock:
            self._server = server
            if self._drains:
                server.drain()

    def follow(self) -> None:
        """Read until standard input closes, then stop the server. If it closes during the load, end
        the process, because the model is no longer wanted."""
        while os.read(0, 4096):
            with self._lock:
                self._drains = True
                if self._server is not None:
                    self._server.drain()
        with self._lock:
            _remove(self._socket_path)
            if self._server is None:
                os._exit(0)
            self._server.stop()


def _remove(socket_path: str) -> None:
    from penstock.engine.saved_weights import SavedWeights

    SavedWeights(Path(socket_path).parent).remove()
    with contextlib.suppress(OSError):
        os.unlink(socket_path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(socket_path))


def end_process(code: int) -> NoReturn:
    """Run the functions of `atexit` and end the process without freeing its objects. Image and
    speech models load Triton, which reports each object that the interpreter did not free as a leak
    in the operator's log."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end_process(main(sys.argv[1]))
