"""An engine that echoes each request's prompt, behind the real engine socket."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from penstock.engine.ipc.server import EngineServer
from penstock.engine.types import EngineGauges, TokenDelta, TokenOutput, TokenRequest
from penstock.grammar.vocabulary import Vocabulary
from tests.support.scripted_engine import INFO


class EchoCore:
    """Returns one token per step. While `held` is set, every sequence withholds its last token."""

    info = INFO

    def __init__(self) -> None:
        self._left: dict[str, list[int]] = {}
        self._wake: Callable[[], None] = lambda: None
        self.held = False

    @property
    def has_work(self) -> bool:
        return any(not self.held or len(left) > 1 for left in self._left.values())

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def release(self) -> None:
        """Send the last tokens."""
        self.held = False
        self._wake()

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """No-op: echoes need no tokenizer."""

    def submit(self, request: TokenRequest) -> None:
        self._left[request.id] = list(request.token_ids)

    def abort(self, request_id: str) -> None:
        self._left.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        now = time.monotonic()
        chunks = []
        for name, left in list(self._left.items()):
            if self.held and len(left) == 1:
                continue
            token = left.pop(0)
            finish = None if left else "stop"
            chunks.append(TokenOutput(name, (TokenDelta(token),), now, 0, finish))
            if finish:
                del self._left[name]
        return chunks

    def prepare(self) -> bool:
        """Return False: there is nothing to prepare."""
        return False

    def gauges(self) -> EngineGauges:
        return EngineGauges(sequences_running=len(self._left))


@contextlib.contextmanager
def serving_echo(path: str, core: EchoCore) -> Iterator[EngineServer]:
    """Serve the core on a socket at `path`, in a thread, until the block ends or the server has
    drained."""
    server = EngineServer(core, path)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
