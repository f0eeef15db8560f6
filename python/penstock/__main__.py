"""Runs `penstock`, also as `python -m penstock`. Ctrl-C ends the process with status 130 and
without a traceback, even during imports and at exit.

Therefore this module imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130


def main() -> None:
    """Run a command. During the command, Ctrl-C raises KeyboardInterrupt; before and after, Ctrl-C
    ends the process at once."""
    _on_interrupt(_leave)
    sys.unraisablehook = _unraisable
    from penstock.cli.main import main as run

    try:
        _on_interrupt(signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _on_interrupt(_leave)


def _on_interrupt(handler: Callable[..., object]) -> None:
    """Set the handler for SIGINT, unless SIGINT is ignored, as it is for processes that a shell
    starts in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Handle an exception that cannot be raised, such as one in a finalizer: exit for
    KeyboardInterrupt, otherwise use Python's default hook."""
    if found.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(found)


if __name__ == "__main__":
    main()
