"""Streams of other clients while many sessions run Python that computes without a pause.

The real API process runs over a scripted engine that gives each stream a token per step. The
callers are chat requests whose scripted model calls the Python tool. All processes share all cores.
The gaps between tokens are measured by the arrival times of the kernel.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.agent.figures import Figure, Section, quantiles
from bench.harness.epoll_client import Exchange, drive
from bench.harness.load_client import percentile
from bench.harness.machine_facts import tree
from bench.harness.pinned_api_server import ApiServer, Call, Cores
from penstock.config import AgentSettings

STREAMS, STEP_S, TOKENS = 16, 0.02, 400
MARKER = "compute without a pause"
START_TIMEOUT_S = 60.0
POLL_S = 0.1
SETTLE_S = 2.0
CODE = """
import time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    sum(range(1000))
print(end)
"""


def measure(model: str, *, sessions: int, repeats: int) -> Section:
    """Measure the inter-token gaps of 16 streams with and without busy sessions, alternating."""
    seconds = STEP_S * TOKENS * 4 + START_TIMEOUT_S
    arguments = {"code": CODE.format(seconds=seconds)}
    text = json.dumps({"name": "service_execute_python", "arguments": arguments})
    call = Call(MARKER, f"<tool_call>\n{text}\n</tool_call>")
    agent = AgentSettings(enable_code_execution=True, code_exec_python=sys.executable)
    cores = frozenset(os.sched_getaffinity(0))
    runs: dict[str, list[float]] = {"without": [], "with": []}
    all_gaps: dict[str, list[float]] = {"without": [], "with": []}
    busy: list[int] = []
    for _ in range(repeats):
        with ApiServer(
            model,
            sys.executable,
            log=False,
            agent=agent,
            cores=Cores(cores, cores),
            engine="bench.agent.calling_engine",
            call=call,
        ) as server:
            server.pace(STEP_S)
            for kind in runs:
                if kind == "with":
                    busy.append(_start_callers(server, sessions))
                gaps = _gaps(drive(server.address, _streams(), STREAMS, 0))
                runs[kind].append(1e3 * percentile(gaps, 0.99))
                all_gaps[kind] += [1e3 * gap for gap in gaps]
            os.kill(server.pid, 9)  # ends the callers' containers too
    ratio = statistics.median(runs["with"]) / statistics.median(runs["without"])
    name = f"inter-token p99 of {STREAMS} streams beside {sessions} busy sessions"
    details = {
        "step_ms": 1e3 * STEP_S,
        "busy_interpreters": busy,
        "p99_ms_of_runs": {kind: [round(p, 2) for p in values] for kind, values in runs.items()},
        "gaps_ms": {kind: quantiles(gaps) for kind, gaps in all_gaps.items()},
    }
    return Section((Figure(name, round(ratio, 2), "x", 1.5, 1.1),), details)


def _start_callers(server: ApiServer, sessions: int) -> int:
    """Start the sessions; return the number of interpreters that compute when all of them do.

    Raises RuntimeError if too few start.
    """
    callers = itertools.repeat(_body(MARKER, stream=False, max_tokens=4000), sessions)
    threading.Thread(target=_call, args=(server.address, callers, sessions), daemon=True).start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while (count := _interpreters(server.pid)) < sessions:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {count} of {sessions} sessions run Python")
        time.sleep(POLL_S)
    time.sleep(SETTLE_S)
    return count


def _call(address: tuple[str, int], callers: Iterator[bytes], sessions: int) -> None:
    try:
        drive(address, callers, sessions, 0)
    except (ConnectionError, IndexError):
        """The server ends before the callers do."""


def _interpreters(pid: int) -> int:
    """Return the number of processes below `pid` that have computed for a tenth of a second."""
    ticks = os.sysconf("SC_CLK_TCK")
    count = 0
    for child in tree(pid)[1:]:
        try:
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        count += int(fields[11]) > ticks // 10
    return count


def _gaps(done: list[Exchange]) -> list[float]:
    """Return the seconds between the arrivals of the tokens of each stream."""
    gaps = []
    for exchange in done:
        if not exchange.ok:
            raise RuntimeError(exchange.answer[:500].decode(errors="replace"))
        arrived = [p.arrived_s for p in exchange.pieces if b'"content":" ' in p.data]
        gaps += [after - before for before, after in itertools.pairwise(arrived)]
    return gaps


def _streams() -> Iterator[bytes]:
    return iter([_body(f"Tell me {k}.", stream=True, max_tokens=TOKENS) for k in range(STREAMS)])


def _body(content: str, *, stream: bool, max_tokens: int) -> bytes:
    said: dict[str, object] = {
        "model": "default",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    if content == MARKER:
        said |= {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}
    body = json.dumps(said).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\nauthorization: Bearer any\r\n"
        b"content-length: %d\r\n\r\n" % len(body) + body
    )
