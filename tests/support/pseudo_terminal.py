"""A program in a pseudo terminal, driven as a person drives it: keys in, text out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from types import TracebackType

_CONTROL = re.compile(r"\x1b\[[?\d;]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")
# The line editor asks the terminal to mark pasted text when it begins to read.
_BEGINS_TO_READ = "\x1b[?2004h"
READING = "\N{KEYBOARD}"
WAIT_S = 60.0


class PseudoTerminal:
    """`said`: all text so far, without control sequences and carriage returns. READING marks where
    the line editor began to read."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        rows: int = 40,
        columns: int = 100,
    ) -> None:
        self.said = ""
        self._seen = 0
        self._rest = b""
        self._main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=side,
            stdout=side,
            stderr=side,
            # A real terminal answers the question for the position of its cursor.
            env={**environment, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(side)

    def __enter__(self) -> PseudoTerminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._main)

    def press(self, keys: str) -> None:
        """Send keys; "\\r" is Enter, "\\x03" is Ctrl-C."""
        os.write(self._main, keys.encode())

    def enter(self, line: str) -> None:
        """Wait until the line editor reads, and send a line."""
        self.expect(READING)
        self.press(f"{line}\r")

    def expect(self, text: str) -> str:
        """Wait for a text after those of earlier calls. Return all that came before it."""
        while (found := self.said.find(text, self._seen)) < 0:
            assert self._read(), f"the program ended without {text!r}:\n{self.said}"
        before = self.said[self._seen : found]
        self._seen = found + len(text)
        return before

    def wait_ended(self) -> int:
        """Read all output and return the exit status."""
        while self._read():
            pass
        return self._process.wait(WAIT_S)

    def _read(self) -> bool:
        """Read the next output. Returns False at the end."""
        ready, _, _ = select.select([self._main], [], [], WAIT_S)
        assert ready, f"the program is silent after:\n{self.said}"
        try:
            data = os.read(self._main, 65536)
        except OSError:  # Linux: EIO after the last process has closed its side
            data = b""
        self._rest += data
        # An unfinished sequence or character waits for its end.
        whole = self._rest.rpartition(b"\x1b")[0] if _is_cut(self._rest) else self._rest
        self._rest = self._rest[len(whole) :]
        text = whole.decode(errors="replace").replace(_BEGINS_TO_READ, READING)
        self.said += _CONTROL.sub("", text)
        return bool(data)


def _is_cut(data: bytes) -> bool:
    last = data.rpartition(b"\x1b")
    return bool(last[1]) and _CONTROL.match("\x1b" + last[2].decode(errors="replace")) is None
