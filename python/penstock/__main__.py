"""`penstock`, also as `python -m penstock`: Ctrl-C ends it with status 130 and without a traceback,
also while it is imported and while the interpreter ends.

So nothing is imported here that takes time.
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
    """Run a command. While it runs, Ctrl-C is a KeyboardInterrupt; before and after, there is
    nothing to end but the process."""
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
    """Unless who started the process wants it to go on, as a shell does in the background."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def _leave(*_: object) -> None:
    os._exit(INTERRUPTED)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Ctrl-C in a finalizer, from which nothing can be raised."""
    if found.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(found)


if __name__ == "__main__":
    main()
