"""`penstock serve` as a separate process, over a model that is generated here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.tiny_model import write_tiny_model

READY = re.compile(r"ready on (http://\S+)")
VOCAB = 257


def write_servable_model(folder: Path) -> str:
    """Write a model that generates random bytes, with its tokenizer; return the folder as a
    setting."""
    write_tiny_model(folder)
    text_config = json.loads((folder / "config.json").read_text())
    write_small_llama(folder, vocab=VOCAB)
    config = json.loads((folder / "config.json").read_text())
    config |= {"eos_token_id": text_config["eos_token_id"], "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


class ServerProcess:
    """A `penstock serve` process. `said` and `warned`: all lines of stdout and stderr so far."""

    def __init__(self, home: Path, *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "serve", "--port", "0", "--threads", "1", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PENSTOCK_HOME": str(home)} | environment,
        )
        self.said: list[str] = []
        self.warned: list[str] = []
        self.url = ""
        self._settled = threading.Event()
        self._heard = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=pipe, daemon=True)
            for pipe in ((self.process.stdout, self.said), (self.process.stderr, self.warned))
        ]
        for reader in self._readers:
            reader.start()

    def wait_ready(self) -> str:
        """Wait for the line that says the server is ready, and return it."""
        assert self._settled.wait(120) and self.url, self.said + self.warned
        return self.said[-1]

    def wait_warned(self, text: str) -> None:
        """Return once a line of stderr contains the text."""
        with self._heard:
            assert self._heard.wait_for(lambda: any(text in w for w in self.warned), 60)

    def wait_ended(self) -> int:
        """Wait for the end and all output; return the exit status."""
        status = self.process.wait(120)
        for reader in self._readers:
            reader.join()
        return status

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def _read(self, pipe: Iterator[str], lines: list[str]) -> None:
        for line in pipe:
            with self._heard:
                lines.append(line.rstrip("\n"))
                self._heard.notify_all()
            if (match := READY.search(line)) is not None:
                self.url = match[1]
                self._settled.set()
        self._settled.set()


@contextmanager
def serving_process(
    model: str, *options: str, home: Path | None = None, **environment: str
) -> Iterator[ServerProcess]:
    """Run a server over a model's folder until the block ends. `home` None: a new one."""
    with tempfile.TemporaryDirectory(prefix="penstock-home-") as own:
        server = ServerProcess(home or Path(own), model, *options, **environment)
        try:
            yield server
        finally:
            server.process.kill()
            server.wait_ended()
