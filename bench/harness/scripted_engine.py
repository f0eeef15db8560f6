"""`python -m bench.harness.scripted_engine SOCKET STAMPS`: an engine process without a model.

It runs the real socket server of the engine (`engine.server`) over a core with scripted tokens: a
step gives every open request the same single token, so that the engine costs next to nothing. When
standard input ends, the start times of all steps are written to STAMPS, followed by the times at
which their frames were sent.
"""

from __future__ import annotations

import array
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

from penstock.engine.ipc.server import EngineServer
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageRequest,
    SpeechRequest,
    StepOutput,
    TokenDelta,
    TokenOutput,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState, refused_order
from penstock.grammar.vocabulary import Vocabulary


class ScriptedCall(msgspec.Struct, frozen=True):
    """The tokens `call`, and the tokens in prompts that get them as their answer."""

    marker: tuple[int, ...] = ()
    call: tuple[int, ...] = ()


class Script(msgspec.Struct, frozen=True):
    """One line of JSON on standard input. Step k of the engine gives `token_ids[k % len]`; `step_s`
    is the time between two steps."""

    model_id: str
    vocab_size: int
    max_model_len: int
    token_ids: list[int]
    step_s: float
    call: ScriptedCall = ScriptedCall()


class ScriptedCore:
    """A `Core` without embeddings and adapters. A new script (see `main`) takes effect between two
    steps."""

    report = ""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.made_s = array.array("d")
        self.sent_s = array.array("d")
        self.info = EngineInfo(
            model_id=script.model_id,
            max_model_len=script.max_model_len,
            vocab_size=script.vocab_size,
            max_num_seqs=1024,
            cache_blocks=0,
            block_size=16,
            weight_bytes=0,
            fingerprint="fp_scripted",
        )
        self._open: dict[str, int] = {}
        self._tokens = [(TokenDelta(token),) for token in script.token_ids]
        self._next_s = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """No-op: work only comes from `submit`."""

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """No-op: a script needs no tokenizer."""

    def submit(self, request: TokenRequest) -> None:
        self._open[request.id] = request.max_tokens

    def embed(self, request: EmbedRequest) -> None:
        raise NotImplementedError

    def speak(self, request: SpeechRequest) -> None:
        raise NotImplementedError

    def paint(self, request: ImageRequest) -> None:
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        raise NotImplementedError

    def retire_adapter(self, revision: str) -> None:
        """No-op: there are no adapters."""

    def adapters(self) -> tuple[AdapterState, ...]:
        return ()

    def step(self) -> list[TokenOutput]:
        """Wait until the step is due; return one token for each open request."""
        self._wait_for_step()
        now = time.monotonic()
        tokens = self._tokens[len(self.made_s) % len(self._tokens)]
        self.made_s.append(now)
        chunks = []
        for request_id, left in list(self._open.items()):
            self._open[request_id] = left - 1
            finish = None
            if left == 1:
                finish = "length"
                del self._open[request_id]
            chunks.append(TokenOutput(request_id, tokens, now, 0, finish))  # type: ignore[arg-type]
        return chunks

    def gauges(self) -> EngineGauges:
        return EngineGauges(sequences_running=len(self._open))

    def prepare(self) -> bool:
        """Return False: a script prepares nothing before a step."""
        return False

    def change_weights(self, order: WeightOrder) -> Future[WeightsState]:
        """Refuse an order: there are no weights."""
        return refused_order()

    def close(self) -> None:
        """No-op: there is nothing to release."""

    def _wait_for_step(self) -> None:
        now = time.monotonic()
        self._next_s = max(self._next_s + self.script.step_s, now - 10 * self.script.step_s)
        if self._next_s > now:
            time.sleep(self._next_s - now)


class _StampedServer(EngineServer):
    """Records when each step was sent."""

    _core: ScriptedCore

    def _deliver(self, chunks: Sequence[StepOutput]) -> None:
        super()._deliver(chunks)
        self._core.sent_s.append(time.monotonic())


def main(
    socket_path: str, stamps: Path, core_type: Callable[[Script], ScriptedCore] = ScriptedCore
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    core = core_type(msgspec.json.decode(sys.stdin.buffer.readline(), type=Script))
    server = _StampedServer(core, socket_path)
    threading.Thread(target=_read_scripts, args=(core, server), daemon=True).start()
    server.run()
    stamps.write_bytes((core.made_s + core.sent_s).tobytes())


def _read_scripts(core: ScriptedCore, server: EngineServer) -> None:
    """Apply each further line as a new script; exit at the end of the input."""
    for line in sys.stdin.buffer:
        core.script = msgspec.structs.replace(core.script, step_s=float(line))
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
