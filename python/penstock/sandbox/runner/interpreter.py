"""The persistent Python interpreter of a container: receives code, runs it, sends the results.

This file runs inside the sandbox, in any Python from 3.8. The server sends it in compiled form
(`runner/facts.py`) because compiling it there would cost 1 MiB and 40 ms per session. For the same
reason it imports only built-in modules and modules that every Python has loaded anyway.

User code runs in the same process. Therefore:

- The functions of the operating system are names of this file, and its `__builtins__` are a copy:
  replacing them in user code has no effect here.
- Requests and replies travel on a descriptor that no child process inherits. A reply begins with
  the 16 random bytes of its request; the server skips anything else.
- Descriptors 1 and 2, `sys.stdin`, `sys.stdout`, `sys.stderr` and the handler of SIGINT are
  restored before each job.

Request: 16 bytes nonce, 16 bytes marker, u32 length, code (UTF-8). Once the code has run, the
marker is written to stdout and to stderr. Reply: the nonce, then fields of 1 byte tag, u32 length
and data; a field with the tag `.` is the last one. Integers are big-endian.

    s  status: success or error        x  exception
    r  repr of the last expression     t  its type
    i  PNG image                       v  PNG frame of an animation
"""

from __future__ import annotations

import sys
from _signal import SIG_SETMASK, SIGINT, pthread_sigmask  # type: ignore[import-not-found]
from _signal import signal as set_handler
from os import _exit, close, dup, dup2, getpid, read, register_at_fork, set_inheritable, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from penstock.sandbox.runner.pictures import Pictures

    Fields = list[tuple[bytes, bytes]]

MAX_TEXT_CHARS = 256 * 1024
MAX_KEPT_SOURCES = 64
PARSE_FLAGS = 0x400 | 0x2000  # ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
AWAIT_FLAG = 0x2000
COROUTINE_FLAG = 0x80  # inspect.CO_COROUTINE

first_main = sys.modules["__main__"]  # a module that is replaced would lose its contents
interruptible = [False]
sources: dict[str, str] = {}  # cell name -> code
event_loops: list[Any] = []


class NoInput:
    """The `sys.stdin` of user code: reading raises RuntimeError."""

    encoding = "utf-8"
    errors = "strict"
    closed = False

    def refuse(self, *args: object) -> None:
        raise RuntimeError("stdin is not available: this code runs without a user at a terminal")

    read = readline = readlines = fileno = __iter__ = __next__ = refuse

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        return None


class Streams:
    """The standard streams of user code. `out`, `err`: own copies of descriptors 1 and 2."""

    def __init__(self) -> None:
        self.out, self.err = dup(1), dup(2)
        self.stdout: Any = sys.stdout
        self.stderr: Any = sys.stderr

    def restore(self) -> None:
        dup2(self.out, 1)
        dup2(self.err, 2)
        self.stdout, self.stderr = usable(self.stdout, 1), usable(self.stderr, 2)
        sys.stdout = sys.__stdout__ = self.stdout  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self.stderr  # type: ignore[misc]
        sys.stdin = sys.__stdin__ = NoInput()  # type: ignore[assignment,misc]

    def finish(self, marker: bytes) -> None:
        """Flush the streams, also those that user code has put in their places; mark the end."""
        for stream in (sys.stdout, sys.stderr, self.stdout, self.stderr):
            attempt(lambda stream=stream: stream.flush())
        send(self.out, marker)
        send(self.err, marker)


def usable(stream: Any, descriptor: int) -> Any:
    """Return the stream, or a new one on the descriptor if user code has closed it."""
    if not stream.closed:
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        return stream
    from io import FileIO, TextIOWrapper

    raw: Any = FileIO(descriptor, "w", closefd=False)
    return TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def on_interrupt(number: int, frame: object) -> None:
    if interruptible[0]:
        raise KeyboardInterrupt


def attempt(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Return (value of the function, None) or (None, its exception); SIGINT interrupts it."""
    try:
        try:
            interruptible[0] = True
            return function(*args), None
        finally:
            interruptible[0] = False
    except BaseException as error:
        interruptible[0] = False
        return None, error


def execute(code: Any, namespace: dict[str, Any]) -> Any:
    """Return the value of compiled code, that of its coroutine if it awaits at the top level."""
    value = eval(code, namespace)  # noqa: S307
    if not code.co_flags & COROUTINE_FLAG:
        return value
    import asyncio

    if not event_loops or event_loops[0].is_closed():
        event_loops[:] = [asyncio.new_event_loop()]
    task = event_loops[0].create_task(value)
    try:
        return event_loops[0].run_until_complete(task)
    except BaseException:
        task.cancel()
        raise


def evaluate(source: str, name: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last expression, None if it ends with a statement."""
    from _ast import Expr, Expression, Module

    tree: Any = compile(source, name, "exec", PARSE_FLAGS, True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], Expr) else None
    if tree.body:
        module = Module(body=tree.body, type_ignores=[])
        execute(compile(module, name, "exec", AWAIT_FLAG, True), namespace)
    if last is None:
        return None
    value = execute(compile(Expression(last.value), name, "eval", AWAIT_FLAG, True), namespace)
    if value is not None:
        namespace["_"] = value
    return value


def encoded(text: str) -> bytes:
    """Return the text as UTF-8, without its middle if it is longer than MAX_TEXT_CHARS."""
    if len(text) > MAX_TEXT_CHARS:
        half = MAX_TEXT_CHARS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace")


def value_fields(value: Any, pictures: Pictures) -> Fields:
    """Return the reply's fields for the value of the last expression."""
    if value is None:
        return []
    image = pictures.add_value(value)
    if image is not None:
        return [(b"r", image.encode()), (b"t", b"PIL.Image")]
    return [(b"r", encoded(repr(value))), (b"t", encoded(type(value).__name__))]


def describe(error: BaseException) -> str:
    """Return the message for an exception: for most of them the traceback from the cell on."""
    if isinstance(error, KeyboardInterrupt):
        return "KeyboardInterrupt: Execution was interrupted."
    if isinstance(error, SystemExit):
        code = "" if error.code is None else repr(error.code)
        return f"SystemExit: Code called sys.exit({code})."
    import linecache
    from traceback import format_exception

    for name, source in sources.items():
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename not in sources:
        first = first.tb_next
    frame = first
    while frame is not None:
        while frame.tb_next is not None and is_own(frame.tb_next):
            frame.tb_next = frame.tb_next.tb_next
        frame = frame.tb_next
    return "".join(format_exception(type(error), error, first))


def is_own(frame: Any) -> bool:
    """Return whether a traceback's frame belongs to the files of this folder."""
    return bool(frame.tb_frame.f_code.co_filename.startswith("<penstock "))


def exception_fields(error: BaseException | None) -> Fields:
    """Return the reply's fields for the exception that ended a job; None: it ended normally."""
    if error is None:
        return [(b"s", b"success")]
    text, failed = attempt(describe, error)
    if failed is not None:
        text = f"{type(error).__name__} (its traceback could not be formatted)"
    succeeded = type(error) is SystemExit and error.code in (None, 0)
    return [(b"s", b"success" if succeeded else b"error"), (b"x", encoded(text))]


def run(source: str, name: str, namespace: dict[str, Any], pictures: Pictures) -> Fields:
    """Run one job; return the fields of its reply."""
    pictures.clear()
    sources[name] = source
    if len(sources) > MAX_KEPT_SOURCES:
        del sources[next(iter(sources))]
    shown: Fields = []
    value, error = attempt(evaluate, source, name, namespace)
    if error is None:
        shown, error = attempt(value_fields, value, pictures)
    _, undrawn = attempt(pictures.add_open_figures)
    sys.settrace(None)
    sys.setprofile(None)
    fields = exception_fields(undrawn if error is None else error) + (shown or [])
    fields += [(b"i", png) for png in pictures.images] + [(b"v", png) for png in pictures.frames]
    if pictures.num_dropped:
        note = f"\n[{pictures.num_dropped} images over the limits dropped]\n"
        attempt(lambda: sys.stderr.write(note))
    return fields


def receive(channel: int, size: int) -> bytes:
    """Return exactly `size` bytes from the server; exit if it is gone."""
    parts = []
    while size:
        part = read(channel, min(size, 1 << 20))
        if not part:
            _exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[write(descriptor, view) :]


def reply(channel: int, nonce: bytes, fields: Fields) -> None:
    parts = [nonce]
    for tag, data in [*fields, (b".", b"")]:
        parts += [tag, len(data).to_bytes(4, "big"), data]
    send(channel, b"".join(parts))


def new_main() -> Any:
    """Return a new, empty `__main__` module for user code."""
    main: Any = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = main
    return main


def serve(channel: int, pictures: Pictures) -> None:
    """Run jobs until the server closes the channel."""
    set_inheritable(channel, False)
    owner, streams, main = getpid(), Streams(), new_main()
    finder: Any = pictures
    sys.meta_path.insert(0, finder)

    def leave_descriptors() -> None:
        for descriptor in (channel, streams.out, streams.err):
            close(descriptor)

    register_at_fork(after_in_child=leave_descriptors)
    number = 0
    while True:
        nonce, marker = receive(channel, 16), receive(channel, 16)
        source = receive(channel, int.from_bytes(receive(channel, 4), "big")).decode()
        number += 1
        streams.restore()
        set_handler(SIGINT, on_interrupt)
        pthread_sigmask(SIG_SETMASK, ())
        try:
            fields = run(source, f"<cell {number}>", main.__dict__, pictures)
        except BaseException as error:
            fields = [(b"s", b"error"), (b"x", type(error).__name__.encode())]
        if getpid() != owner:  # user code called os.fork() and its child came back
            _exit(0)
        streams.finish(marker)
        reply(channel, nonce, fields)
