"""What must be so after a soak: nothing left behind, a whole log, the same answers as before."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from bench.soak.server import ServerResources, SoakedServer

IDLE: Final = (
    "http_requests_in_flight",
    "service_sequences_running",
    "service_sequences_waiting",
    "service_kv_cache_blocks_used",
)
# The pools of threads and of the store's connections, of three descriptors each, fill on demand.
SPARE_FDS: Final = 15
SPARE_THREADS: Final = 6
# What is told of processes that were killed.
TOLD: Final = ("the engine process ended", "the engine did not restart", "; restarting it")
MOST_TRIALS: Final = 2  # of each API process
# Greedy, drawn, constrained, scored, embedded: every bit of each answer but its id and times.
REFERENCES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Name three rivers of Asia."}],
            "max_tokens": 32,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 5,
        },
    ),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 32, "seed": 5, "n": 3}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "A river?"}],
            "max_tokens": 24,
            "temperature": 0,
            "grammar": {"type": "regex", "value": "[A-Z][a-z]{2,9}, [0-9]{2,4} km"},
        },
    ),
    (
        "/v1/completions",
        {"prompt": "One two", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 3},
    ),
    ("/v1/embeddings", {"model": "embedding", "input": ["a river", "a stream of words"]}),
)


def reference_answers(server: SoakedServer) -> list[Any]:
    """What the server answers to the reference requests."""
    return [_lasting(json.loads(server.post(path, body))) for path, body in REFERENCES]


def _lasting(answer: dict[str, Any]) -> Any:
    return answer.get("choices") or answer["data"]


def differences(before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """Reference requests whose answers are not what they were."""
    return [
        f"{path} {body} was answered {one}, and is now {other}"
        for (path, body), one, other in zip(REFERENCES, before, after, strict=True)
        if one != other
    ]


def leaks(before: ServerResources, after: ServerResources, workers: int) -> list[str]:
    """What an idle server still has of requests that are over, beyond what its pools grow by, and
    what it lacks of what it began with."""
    found = [
        f"{name} is {after.gauges.get(name, 0.0):g}" for name in IDLE if after.gauges.get(name)
    ]
    if after.leases:
        found.append(f"{after.leases} leases of adapters")
    if after.retired:
        found.append(f"{after.retired} retired generations")
    if after.busy:
        found.append(f"{after.busy} sessions that nobody is answered in")
    if after.unfinished:
        found.append(f"unfinished responses: {', '.join(after.unfinished[:3])}")
    for role in {*before.processes, *after.processes} - {"trial"}:
        was, now = before.processes.get(role, 0), after.processes.get(role, 0)
        if was != now:
            found.append(f"{role}: {was} processes before, {now} after")
    if after.processes.get("trial", 0) > MOST_TRIALS * workers:
        found.append(f"{after.processes['trial']} processes that try grammars")
    for what, spare, one, other in (
        ("descriptors", SPARE_FDS, before.fds, after.fds),
        ("threads", SPARE_THREADS, before.threads, after.threads),
    ):
        found += [
            f"{role}: {one[role]} {what} before, {other[role]} after"
            for role in sorted(one.keys() & other.keys())
            if other[role] > one[role] + spare
        ]
    if len(after.temporary) > len(before.temporary):
        found.append(f"temporary files: {after.temporary}")
    return found


def growth_mib(samples: Sequence[float]) -> float:
    """How much the last quarter of the samples is above the second one, by their medians; what came
    before is warming up."""
    quarter = len(samples) // 4
    if not quarter:
        return 0.0
    return statistics.median(samples[-quarter:]) - statistics.median(samples[quarter : 2 * quarter])


def audit_log(lines: Iterable[str], *, cut: bool = False) -> tuple[list[str], Counter[str]]:
    """Complaints about a JSON access log with the server's own lines between; and how many requests
    came to which outcome. A request that was understood has one line of each kind, unless its
    process was killed (`cut`)."""
    open_ids: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    found = []
    for line in lines:
        if "Traceback" in line or (" ERROR " in line and not _is_told(line)):
            found.append(line.strip())
        if not line.startswith("{"):
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            found.append(f"a torn line: {line[:100]!r}")
            continue
        step = 1 if entry["event"] == "request started" else -1
        open_ids[entry["request_id"]] += step
        if step < 0:
            outcomes[f"{entry['status']} {entry['outcome']}"] += 1
    unpaired = [request_id for request_id, count in open_ids.items() if count]
    if unpaired and not cut:
        found.append(f"{len(unpaired)} requests without both lines: {unpaired[:3]}")
    return found, outcomes


def _is_told(line: str) -> bool:
    return any(told in line for told in TOLD)
