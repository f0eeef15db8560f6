"""A child process that tries grammars: `python -m penstock.grammar.trial_process`.

A client's grammar may make the grammar library use too much time, memory or stack in code that can
neither be stopped nor return an error. So this process compiles each grammar first.

The process reads frames from standard input: first a `TrialSetup`, then serialized grammars. It
answers each grammar with a frame: the grammar's error, or an empty string. A frame is a 4-byte
little-endian length and msgpack. The parent ends this process by closing the pipe, or kills it if a
grammar takes too long.
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
"""Stack of the compiling thread. All threads of the engine have more, so a grammar that compiles
here also compiles there."""
MEMORY_BYTES: Final = 512 * 1024 * 1024
"""Memory for a grammar, in addition to the memory of the process at its start."""
CPU_S: Final = 10
"""CPU time limit for one grammar, in case the parent has ended and cannot kill this process."""
LENGTH: Final = struct.Struct("<I")


class TrialSetup(msgspec.Struct, frozen=True):
    """The first frame that the process receives. `vocab_size`: bits of a token mask."""

    vocabulary: Vocabulary
    vocab_size: int


def encode_frame(message: TrialSetup | str) -> bytes:
    """Encode a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the server handles them and ends this process
        signal.signal(number, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read(source)
    if first is None:
        return
    setup = msgspec.msgpack.decode(first, type=TrialSetup)
    try:
        tokenizer: LLTokenizer | ModelError = setup.vocabulary.grammar_tokenizer(setup.vocab_size)
    except ModelError as error:
        tokenizer = error
    _limit_memory()
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(source, sink, tokenizer))
    worker.start()
    worker.join()


def _serve(source: BinaryIO, sink: BinaryIO, tokenizer: LLTokenizer | ModelError) -> None:
    while (body := _read(source)) is not None:
        sink.write(encode_frame(_error_of(tokenizer, msgspec.msgpack.decode(body, type=str))))
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
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return source.read(LENGTH.unpack(head)[0])


if __name__ == "__main__":
    main()
