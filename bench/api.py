"""`python -m bench api`: capacity of one API process, over a scripted engine.

The real API process (`penstock.api.serving.worker`: uvicorn, the model's own tokenizer and
template) runs on one core. The load client and an engine process that plays a script over the real
socket share another one. Each workload runs several times, and the run with the least CPU time per
request or token is reported: on a shared machine it was disturbed least. `python_loop_us` measures
the speed of the core before and after.

`requests`: answers of 32 tokens, not streamed; each connection sends its next request at once.
`streams-R`: 128 streams to which the engine offers R tokens/s together, one token per stream and
step. `tokens_per_frame`: how many tokens the server joined in a frame. Latencies, all by one clock:
`added`, from the engine's step to the client's read; `server`, the part of it from the engine's
`send` to the server's, without the time of the engine and the client themselves; `calm`, the same
for tokens that came while no request waited for its first token, which is work for the same core.
`waited_share`: share of the time in which the API process waited for its core; `--first` (needs
root) avoids that wait.
"""

from __future__ import annotations

import argparse
import array
import itertools
import json
import math
import random
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from bench.harness.epoll_client import Exchange, drive
from bench.harness.load_client import percentile
from bench.harness.machine_facts import facts, python_loop_us
from bench.harness.pinned_api_server import SERVER_CORE, ApiServer

ANSWER_TOKENS = 32
REQUEST_STEP_S = 0.001
CONNECTIONS = 128
STREAM_S, LEAST_TOKENS = 0.5, 256
RATES = (12_800, 50_000, 100_000, 150_000, 200_000)
WARM_S = 1.0
REPORT_EVERY = 10_000
_CONTENT = re.compile(rb'"content":"( [^"]*)"')

Row = dict[str, float]
Stamps = tuple["array.array[float]", "array.array[float]"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench api", description=__doc__)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="model, as for `penstock serve`"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="Python interpreter whose penstock is measured"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="tokens/s offered")
    parser.add_argument(
        "--requests", type=int, default=0, help="send this many requests and report the memory"
    )
    parser.add_argument(
        "--first", action="store_true", help="give the API process priority on its core (root)"
    )
    parser.add_argument("--quiet", action="store_true", help="without an access log")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    rates = [int(rate) for rate in arguments.rates.split(",") if rate]
    loop_us = [python_loop_us(SERVER_CORE)]
    with ApiServer(arguments.model, arguments.python, log=not arguments.quiet) as server:
        if arguments.first:
            server.raise_priority()
        if arguments.requests:
            rows = memory(server, arguments.requests)
        else:
            rows = {"requests": requests(server, arguments.seconds, arguments.repeats)}
            rows |= streams(server, rates, arguments.seconds, arguments.repeats)
    loop_us.append(python_loop_us(SERVER_CORE))
    result = {"machine": facts() | {"python_loop_us": loop_us}, "rows": rows}
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def requests(server: ApiServer, seconds: float, repeats: int) -> Row:
    """Measure answers that are not streamed, at the highest rate."""
    server.pace(REQUEST_STEP_S)
    asking = bodies(stream=False, max_tokens=ANSWER_TOKENS)
    drive(server.address, asking, CONNECTIONS, WARM_S)
    runs = [_requests(server, asking, seconds) for _ in range(repeats)]
    return min(runs, key=itemgetter("cpu_us_per_request"))


def _requests(server: ApiServer, asking: Iterator[bytes], seconds: float) -> Row:
    cpu_s, waited_s = server.cpu_s(), server.waited_s()
    done = drive(server.address, asking, CONNECTIONS, seconds)
    cpu_s, waited_s = server.cpu_s() - cpu_s, server.waited_s() - waited_s
    _check(done)
    wall_s = done[-1].ended_s - done[0].began_s
    took = [exchange.ended_s - exchange.began_s for exchange in done]
    return {
        "requests_s": round(len(done) / wall_s, 1),
        "requests_per_cpu_s": round(len(done) / cpu_s, 1),
        "cpu_us_per_request": round(1e6 * cpu_s / len(done), 1),
        "cpu_share": round(cpu_s / wall_s, 3),
        "waited_share": round(waited_s / wall_s, 3),
        "p50_ms": round(1e3 * percentile(took, 0.5), 2),
        "p99_ms": round(1e3 * percentile(took, 0.99), 2),
        "rss_mib": round(server.rss_mib(), 1),
    }


def streams(
    server: ApiServer, rates: Sequence[int], seconds: float, repeats: int
) -> dict[str, Row]:
    """Measure streams at several token rates of the engine. Ends the engine to read its
    timestamps."""
    runs = []
    for rate in sorted([*rates] * repeats):
        server.pace(CONNECTIONS / rate)
        tokens = max(LEAST_TOKENS, round(STREAM_S * rate / CONNECTIONS))
        asking = bodies(stream=True, max_tokens=tokens, spread=0.5)
        cpu_s, waited_s = server.cpu_s(), server.waited_s()
        done = drive(server.address, asking, CONNECTIONS, seconds)
        _check(done)
        used = server.cpu_s() - cpu_s, server.waited_s() - waited_s
        runs.append((rate, done, used, server.rss_mib()))
    stamps = server.stamps()
    places = {word: place for place, word in enumerate(server.words)}
    rows: dict[str, Row] = {}
    for rate, done, used, rss in runs:
        row = _stream_row(done, used, stamps, places) | {"rss_mib": round(rss, 1)}
        best = rows.setdefault(f"streams-{rate}", row)
        if row["cpu_us_per_token"] < best["cpu_us_per_token"]:
            rows[f"streams-{rate}"] = row
    return rows


def memory(server: ApiServer, count: int) -> dict[str, Row]:
    """Measure the resident memory after each batch of requests, half of them streamed."""
    server.pace(REQUEST_STEP_S)
    rows = {"0": {"rss_mib": round(server.rss_mib(), 1)}}
    kinds = [bodies(stream=stream, max_tokens=ANSWER_TOKENS) for stream in (False, True)]
    asking = itertools.chain.from_iterable(zip(*kinds, strict=True))
    for total in range(REPORT_EVERY, count + 1, REPORT_EVERY):
        part = itertools.islice(asking, REPORT_EVERY)
        _check(drive(server.address, part, CONNECTIONS, float("inf")))
        rows[str(total)] = {"rss_mib": round(server.rss_mib(), 1)}
        print(total, rows[str(total)], file=sys.stderr, flush=True)
    return rows


def bodies(*, stream: bool, max_tokens: int, spread: float = 0.0) -> Iterator[bytes]:
    """Yield requests as a chat client sends them; no two in a row are the same.

    `max_tokens` is their mean; each varies by the share `spread`, so that streams do not all end at
    once.
    """
    draws = random.Random(1)
    made = []
    for number in range(997):
        tokens = round(max_tokens * draws.uniform(1 - spread, 1 + spread))
        content = f"Name three rivers that are longer than {number} km, and say where they end."
        body = json.dumps(
            {
                "model": "default",
                "messages": [{"role": "user", "content": content}],
                "max_tokens": tokens,
                "stream": stream,
            }
        ).encode()
        made.append(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\nauthorization: Bearer any\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
    return itertools.cycle(made)


def _check(done: Sequence[Exchange]) -> None:
    for exchange in done:
        if not exchange.ok:
            raise RuntimeError(exchange.answer[:1000].decode(errors="replace"))


def _stream_row(
    done: Sequence[Exchange],
    used: tuple[float, float],
    stamps: Stamps,
    places: dict[str, int],
) -> Row:
    """Figures of one rate. Throughput counts the events before the first answer's end and the
    last's."""
    made_s, sent_s = stamps
    cpu_s, waited_s = used
    latencies: list[float] = []
    within: list[float] = []
    calm: list[float] = []
    openings = _waiting_spans(done)
    frames = 0
    for exchange in done:
        seen: list[int] = []
        for piece in exchange.pieces:
            found = _CONTENT.findall(piece.data)
            frames += len(found)
            for content in found:
                for word in content.decode().split(" ")[1:]:
                    place = places[f" {word}"]
                    seen.append(place)
                    step = _step_of_token(place, piece.read_s, made_s, len(places))
                    latencies.append(piece.read_s - made_s[step])
                    within.append(piece.arrived_s - sent_s[step])
                    if not _overlaps(openings, sent_s[step], piece.arrived_s):
                        calm.append(within[-1])
        expected = [(seen[0] + k) % len(places) for k in range(len(seen))]
        complete = b'"completion_tokens":%d,' % len(seen) in exchange.answer
        assert seen == expected and complete, "a stream lost, doubled or reordered a token"
    wall_s = max(e.ended_s for e in done) - min(e.began_s for e in done)
    tokens = len(latencies)
    return {
        "tokens_s": round(tokens / wall_s),
        "tokens_per_cpu_s": round(tokens / cpu_s),
        "cpu_us_per_token": round(1e6 * cpu_s / tokens, 2),
        "cpu_share": round(cpu_s / wall_s, 3),
        "waited_share": round(waited_s / wall_s, 3),
        "tokens_per_frame": round(tokens / frames, 2),
        "added_p50_ms": round(1e3 * percentile(latencies, 0.5), 3),
        "added_p99_ms": round(1e3 * percentile(latencies, 0.99), 3),
        "server_p50_ms": round(1e3 * percentile(within, 0.5), 3),
        "server_p99_ms": round(1e3 * percentile(within, 0.99), 3),
        "calm_share": round(len(calm) / len(within), 3),
        "calm_p50_ms": round(1e3 * percentile(calm or [math.nan], 0.5), 3),
        "calm_p99_ms": round(1e3 * percentile(calm or [math.nan], 0.99), 3),
    }


def _waiting_spans(done: Sequence[Exchange]) -> list[tuple[float, float]]:
    """Return the time spans in which a request waited for its first token, sorted and merged."""
    spans: list[tuple[float, float]] = []
    for began_s, answered_s in sorted((e.began_s, _first_token_s(e)) for e in done):
        if spans and began_s <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], answered_s)
        else:
            spans.append((began_s, answered_s))
    return spans


def _first_token_s(exchange: Exchange) -> float:
    return next(piece.read_s for piece in exchange.pieces if _CONTENT.search(piece.data))


def _overlaps(spans: Sequence[tuple[float, float]], start_s: float, end_s: float) -> bool:
    """Return whether one of the spans overlaps the time between `start_s` and `end_s`."""
    last = bisect_right(spans, (end_s, math.inf)) - 1
    return last >= 0 and spans[last][1] >= start_s


def _step_of_token(place: int, time_s: float, made_s: array.array[float], count: int) -> int:
    """Return the step in which the engine made the token: the latest step with this word before it
    arrived."""
    last = bisect_right(made_s, time_s) - 1
    return last - (last - place) % count


if __name__ == "__main__":
    main()
