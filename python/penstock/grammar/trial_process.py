"""A process that tries grammars: `python -m penstock.grammar.trial_process`.

What a client wrote may make the grammar library run out of time, memory or stack, where it can
neither be stopped nor fail softly. So it is compiled here first. Reads frames from standard input:
one `Vocabulary` and the vocabulary's size, then serialized grammars; answers each with the error,
empty for a good one. A frame is a 4-byte little-endian length and msgpack. Whoever started it ends
it by closing the pipe, or kills it when a grammar takes too long.
"""

from __future__ import annotations

import resource
import signal
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.grammar.vocabulary import GrammarError, Vocabulary, compile_grammar

if TYPE_CHECKING:
    from llguidance import LLTokenizer

STACK_BYTES: Final = 1024 * 1024
"""Less than any thread of the engine has: what fits here fits there."""
MEMORY_BYTES: Final = 512 * 1024 * 1024
"""What a grammar may take on top of the process as it starts."""
CPU_S: Final = 10
"""What a grammar may take where nobody is left who would kill the process for it."""
LENGTH: Final = struct.Struct("<I")


class Taught(msgspec.Struct, frozen=True):
    """The first frame."""

    vocabulary: Vocabulary
    vocab_size: int


def frame(message: Taught | str) -> bytes:
    """The bytes of a message."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # are for the server, whose answers go on
        signal.signal(number, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read(source)
    if first is None:
        return
    tokenizer_setup = msgspec.msgpack.decode(first, type=Taught)
    try:
        tokenizer: LLTokenizer | ModelError = tokenizer_setup.vocabulary.grammar_tokenizer(
            tokenizer_setup.vocab_size
        )
    except ModelError as error:
        tokenizer = error
    _limit_memory()
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(source, sink, tokenizer))
    worker.start()
    worker.join()


def _serve(source: BinaryIO, sink: BinaryIO, tokenizer: LLTokenizer | ModelError) -> None:
    while (body := _read(source)) is not None:
        sink.write(frame(_error_of(tokenizer, msgspec.msgpack.decode(body, type=str))))
        sink.flush()


def _error_of(tokenizer: LLTokenizer | ModelError, grammar: str) -> str:
    if isinstance(tokenizer, ModelError):
        return str(tokenizer)
    _limit_time()
    try:
        compile_grammar(tokenizer, grammar)
    except GrammarError as error:
        return str(error) or "it cannot be compiled"
    return ""


def _limit_time() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_S, hard))


def _limit_memory() -> None:
    with open("/proc/self/statm") as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(head)[0])


if __name__ == "__main__":
    main()
