"""Checks after a soak: nothing is left behind, the log is complete, answers are as before."""

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
# The pools of threads and of the store's connections (three descriptors each) fill on demand.
SPARE_FDS: Final = 15
SPARE_THREADS: Final = 6
# Log messages about processes that were killed.
EXPECTED_LOG_LINES: Final = (
    "the engine process ended",
    "the engine did not restart",
    "; restarting it",
)
MOST_TRIALS: Final = 2  # per API process
# Greedy, sampled, constrained, scored, embedded: all of each answer must repeat exactly, except its
# id and times.
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
    """Return the server's answers to the reference requests."""
    return [_comparable(json.loads(server.post(path, body))) for path, body in REFERENCES]


def _comparable(answer: dict[str, Any]) -> Any:
    return answer.get("choices") or answer["data"]


def differences(before: Sequence[Any], after: Sequence[Any]) -> list[str]:
    """Return the reference requests whose answers changed."""
    return [
        f"{path} {body} was answered {one}, and is now {other}"
        for (path, body), one, other in zip(REFERENCES, before, after, strict=True)
        if one != other
    ]


def leaks(before: ServerResources, after: ServerResources, workers: int) -> list[str]:
    """Return the resources that an idle server still holds for finished requests, beyond the growth
    of its pools, and the processes that it lost."""
    found = [
        f"{name} is {after.gauges.get(name, 0.0):g}" for name in IDLE if after.gauges.get(name)
    ]
    if after.leases:
        found.append(f"{after.leases} leases of adapters")
    if after.retired:
        found.append(f"{after.retired} retired adapter revisions")
    if after.busy:
        found.append(f"{after.busy} sessions leased without a running request")
    if after.unfinished:
        found.append(f"unfinished responses: {', '.join(after.unfinished[:3])}")
    for role in {*before.processes, *after.processes} - {"trial"}:
        was, now = before.processes.get(role, 0), after.processes.get(role, 0)
        if was != now:
            found.append(f"{role}: {was} processes before, {now} after")
    if after.processes.get("trial", 0) > MOST_TRIALS * workers:
        found.append(f"{after.processes['trial']} grammar trial processes")
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
    """Return how much the median of the last quarter exceeds that of the second one; the first is
    warm-up."""
    quarter = len(samples) // 4
    if not quarter:
        return 0.0
    return statistics.median(samples[-quarter:]) - statistics.median(samples[quarter : 2 * quarter])


def audit_log(lines: Iterable[str], *, cut: bool = False) -> tuple[list[str], Counter[str]]:
    """Return complaints about a JSON access log mixed with the server's own lines, and the number
    of requests by outcome.

    A decoded request has one "started" and one "finished" line, unless its process was killed
    (`cut`).
    """
    open_ids: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    found = []
    for line in lines:
        if "Traceback" in line or (" ERROR " in line and not _is_expected(line)):
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


def _is_expected(line: str) -> bool:
    return any(message in line for message in EXPECTED_LOG_LINES)
