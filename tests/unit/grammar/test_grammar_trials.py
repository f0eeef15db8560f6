"""Trial processes: hostile grammars, killed children, a closed compiler."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest, Unavailable
from penstock.dialog import Constraint
from penstock.grammar import compiler as grammar_module
from penstock.grammar import trial as grammar_trial
from penstock.grammar.compiler import GrammarCompiler
from penstock.text.grammar_vocabulary import vocabulary_of
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from tests.support.stopped_processes import stop_process

VOCABULARY = vocabulary_of(tiny_tokenizer())
SIZE = 264


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, SIZE)
    yield made
    made.close()


def schema(value: Any, *, strict: bool = True) -> Constraint:
    return Constraint("json_schema", json.dumps(value), strict)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def exploding_lark() -> str:
    """Thirty intersected expressions that allow no answer; finding that out takes forever."""
    parts = " & ".join(f"/(.|\\n)*a(.|\\n){{{i}}}b(.|\\n)*/" for i in range(30))
    return f"start: X\nX: {parts}"


def endless_chain() -> str:
    """Rules that may be empty, each through the next: the library recurses to find out."""
    count = 4000
    rules = "\n".join(f'x{i}: | "a{i}" | x{(i + 1) % count}' for i in range(count))
    return "start: " + " ".join(f"x{i}" for i in range(count)) + "\n" + rules


HOSTILE = {
    "deep schema": Constraint("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
    "deep array": Constraint("json_schema", nested(50_000)),
    "deep regex": Constraint("regex", "(" * 50_000 + ")*" * 50_000),
    "deep lark": Constraint("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "huge choice": schema({"anyOf": [{"required": [f"k{i}"]} for i in range(50_000)]}),
    "large enum": schema({"enum": [f"value {i}" for i in range(20_000)]}),
    "endless chain": Constraint("lark", endless_chain()),
    "endless reference": schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "exploding conditions": schema(
        {"allOf": [{"anyOf": [{"required": [f"k{i}{j}"]} for j in range(9)]} for i in range(9)]}
    ),
    "many properties": schema({"properties": {f"k{i}": {} for i in range(8000)}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammar_is_refused_and_the_next_one_compiles(
    compiler: GrammarCompiler, name: str
) -> None:
    with pytest.raises(InvalidRequest):
        compiler.compile(HOSTILE[name])
    assert compiler.compile(Constraint("regex", f"[{name[0]}b]+"))


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
        Constraint("regex", "(.*a){30}"),
        Constraint("regex", "(a|b)*a(a|b){300}"),
        schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
        schema({"type": "string", "maxLength": 10**9}),
        schema({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"$ref": "#"}}}}}),
    ],
)
def test_large_repetition_and_recursion_compile(
    compiler: GrammarCompiler, constraint: Constraint
) -> None:
    assert compiler.compile(constraint)


def test_grammar_that_compiles_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(VOCABULARY, SIZE)
    compiler.compile(Constraint("regex", "a"))  # the child is up
    monkeypatch.setattr(grammar_trial, "COMPILE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(grammar_trial, "WALL_TIME_FACTOR", 1000)  # a busy machine is no error
    with pytest.raises(InvalidRequest, match=r"too (long|much)"):
        compiler.compile(Constraint("lark", exploding_lark()))
    assert compiler.compile(Constraint("regex", "b"))
    compiler.close()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The child processes of all trials, in order."""
    asked: list[subprocess.Popen[bytes]] = []
    ask = grammar_trial._Child.error_of

    def record(child: Any, grammar: str, timeout_s: float) -> str | None:
        asked.append(child._process)
        return ask(child, grammar, timeout_s)

    monkeypatch.setattr(grammar_trial._Child, "error_of", record)
    return asked


@pytest.fixture
def own_compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, SIZE)
    yield made
    made.close()


def start_stopped_trial(
    compiler: GrammarCompiler, children: list[subprocess.Popen[bytes]]
) -> threading.Thread:
    """Start to compile "b" in the first child, which is stopped."""
    compiler.compile(Constraint("regex", "a"))
    stop_process(children[0].pid)
    thread = threading.Thread(target=compiler.compile, args=(Constraint("regex", "b"),))
    thread.start()
    while len(children) < 2:
        time.sleep(0.01)
    return thread


def test_grammar_is_retried_after_its_idle_child_was_killed(
    own_compiler: GrammarCompiler, children: list[subprocess.Popen[bytes]]
) -> None:
    own_compiler.compile(Constraint("regex", "a"))
    children[0].send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, children[0].pid, os.WEXITED | os.WNOWAIT)
    assert own_compiler.compile(Constraint("regex", "b"))


def test_grammar_is_retried_after_its_busy_child_was_killed(
    own_compiler: GrammarCompiler, children: list[subprocess.Popen[bytes]]
) -> None:
    thread = start_stopped_trial(own_compiler, children)
    children[0].send_signal(signal.SIGKILL)
    thread.join()
    assert own_compiler.cached(Constraint("regex", "b"))


def test_close_ends_all_children(
    own_compiler: GrammarCompiler, children: list[subprocess.Popen[bytes]]
) -> None:
    thread = start_stopped_trial(own_compiler, children)
    own_compiler.compile(Constraint("regex", "c"))  # the first one is busy
    children[0].send_signal(signal.SIGCONT)
    thread.join()
    own_compiler.close()
    assert len({child.pid for child in children}) == 2
    assert all(child.returncode is not None for child in children)


def test_grammar_that_kills_two_children_is_refused(
    own_compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = grammar_trial._Child.error_of

    def killed(child: Any, grammar: str, timeout_s: float) -> str | None:
        child._process.kill()
        return ask(child, grammar, timeout_s)

    monkeypatch.setattr(grammar_trial._Child, "error_of", killed)
    with pytest.raises(InvalidRequest, match="too much memory"):
        own_compiler.compile(Constraint("regex", "a"))


def test_sigterm_and_sigint_do_not_end_a_child(
    own_compiler: GrammarCompiler, children: list[subprocess.Popen[bytes]]
) -> None:
    own_compiler.compile(Constraint("regex", "a"))
    for number in (signal.SIGTERM, signal.SIGINT):
        children[0].send_signal(number)
    own_compiler.compile(Constraint("regex", "b"))
    assert children[1].pid == children[0].pid


def test_grammar_that_timed_out_on_a_busy_machine_can_be_tried_again(
    own_compiler: GrammarCompiler,
    children: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_compiler.compile(Constraint("regex", "a"))
    stop_process(children[0].pid)
    with monkeypatch.context() as short:
        short.setattr(grammar_trial, "COMPILE_TIMEOUT_S", 0.1)
        with pytest.raises(Unavailable, match="regular expression could not be compiled in time"):
            own_compiler.compile(Constraint("regex", "b"))
    assert own_compiler.compile(Constraint("regex", "b"))


def test_close_ends_a_busy_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = threading.Event()
    sent = grammar_trial._Child._send

    def record(child: Any, data: bytes) -> None:
        sent(child, data)
        children.append(child._process)
        asked.set()

    children: list[subprocess.Popen[bytes]] = []
    refusals: list[str] = []

    def compile() -> None:
        with pytest.raises(InvalidRequest) as refused:
            compiler.compile(Constraint("lark", exploding_lark()))
        refusals.append(refused.value.message)

    monkeypatch.setattr(grammar_trial, "COMPILE_TIMEOUT_S", 600)
    compiler = GrammarCompiler(VOCABULARY, SIZE)
    compiler.compile(Constraint("regex", "a"))  # the child is up
    monkeypatch.setattr(grammar_trial._Child, "_send", record)
    thread = threading.Thread(target=compile)
    thread.start()
    asked.wait()
    compiler.close()
    compiler.close()
    thread.join()
    assert refusals and children[0].returncode is not None
    with pytest.raises(InvalidRequest):
        compiler.compile(Constraint("regex", "b"))


def test_close_ends_a_child_that_does_not_read_its_pipe(
    own_compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary does not fit into a pipe."""
    asked = threading.Event()

    def full(child: Any, data: bytes) -> None:
        asked.set()
        child._process.wait()
        raise grammar_trial._Killed

    def compile() -> None:
        with pytest.raises(InvalidRequest, match="closed"):
            own_compiler.compile(Constraint("regex", "a"))

    monkeypatch.setattr(grammar_trial._Child, "_send", full)
    thread = threading.Thread(target=compile, daemon=True)
    thread.start()
    asked.wait()
    own_compiler.close()
    thread.join(60)
    assert not thread.is_alive()


def test_garbage_collected_compiler_ends_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    kill = grammar_trial._Child.kill

    def record(child: Any) -> None:
        processes.append(child._process)
        kill(child)

    monkeypatch.setattr(grammar_trial._Child, "kill", record)
    compiler = GrammarCompiler(VOCABULARY, SIZE)
    compiler.compile(Constraint("regex", "a"))
    del compiler
    gc.collect()
    (process,) = processes
    assert process.returncode is not None


def test_search_for_schema_faults_is_limited(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit each keyword would be left out in turn and the rest tried."""
    many = {"type": "nope", "minLength": -5} | {f"k{number}": 1 for number in range(12_000)}
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="JSON schema cannot be used"):
        compiler.compile(schema(many, strict=False))
    assert time.monotonic() - began < 60, "it took hours"
    monkeypatch.setattr(grammar_module, "_SEARCH_S", 0.0)
    with pytest.raises(InvalidRequest, match="cannot be used"):
        compiler.compile(schema({"type": "nope", "k": 1}, strict=False))
