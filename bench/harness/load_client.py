"""The load client: streamed requests to any server with OpenAI's completions API.

It uses one thread, raw sockets and one connection per request, so that it needs little of the two
cores that it shares with the server. `burst` starts all requests at once; `beside` also sends
further prompts at Poisson times, regardless of the server's progress.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class Refused(Exception):
    """The server did not answer a request with a stream of tokens."""


@dataclass(frozen=True)
class Trace:
    """Times in seconds since the start of the burst: the start of the request and the arrival of
    each token."""

    began: float
    times: tuple[float, ...]

    @property
    def ttft(self) -> float:
        return self.times[0] - self.began


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures(traces: Sequence[Trace], prompt_tokens: int) -> dict[str, float]:
    """Return the speeds (tokens per second) and latencies (milliseconds) of one burst. Raises
    Refused if a request got no token."""
    if not all(t.times for t in traces):
        raise Refused(f"{sum(not t.times for t in traces)} of {len(traces)} got no token")
    gaps = [b - a for t in traces for a, b in zip(t.times, t.times[1:], strict=False)]
    end = max(t.times[-1] for t in traces)
    start = min(t.began for t in traces)
    first = max(t.times[0] for t in traces)
    out = {
        "prompt_tok_s": prompt_tokens * len(traces) / (first - start),
        "out_tok_s": sum(len(t.times) for t in traces) / (end - start),
        "ttft_p50_ms": 1e3 * statistics.median(t.ttft for t in traces),
        "ttft_p99_ms": 1e3 * percentile([t.ttft for t in traces], 0.99),
    }
    if gaps:
        out["itl_p50_ms"] = 1e3 * percentile(gaps, 0.50)
        out["itl_p99_ms"] = 1e3 * percentile(gaps, 0.99)
        # from the first token of the last request to the end of the first request
        last = min(t.times[-1] for t in traces)
        if last > first:
            tokens = sum(first < x <= last for t in traces for x in t.times)
            out["decode_tok_s"] = tokens / (last - first)
    return out


class Client:
    """Sends requests to one server. `extra` is merged into every request's JSON."""

    def __init__(self, base_url: str, model: str, extra: dict[str, Any] | None = None) -> None:
        self._url = urlsplit(base_url.rstrip("/") + "/completions")
        self._base: dict[str, Any] = {"model": model, "temperature": 0, "stream": True}
        self._base |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        self._base |= extra or {}

    async def burst(self, prompts: Sequence[list[int] | str], new: int) -> list[Trace]:
        """Send all prompts at once; each answer has `new` tokens."""
        start = time.perf_counter()
        return await asyncio.gather(*(self.request(p, new, start) for p in prompts))

    async def beside(
        self,
        prompts: Sequence[list[int]],
        new: int,
        arriving: Sequence[list[int]],
        rate_per_s: float,
        seed: int = 0,
    ) -> tuple[list[Trace], list[Trace]]:
        """Send a burst and, until it ends, prompts of one answer token at Poisson times of the
        given rate. Returns the traces of both."""
        draws = random.Random(seed)
        start = time.perf_counter()
        burst = [asyncio.create_task(self.request(p, new, start)) for p in prompts]
        tasks = []
        for prompt in arriving:
            await asyncio.sleep(draws.expovariate(rate_per_s))
            if all(task.done() for task in burst):
                break
            tasks.append(asyncio.create_task(self.request(prompt, 1, start)))
        return await asyncio.gather(*burst), await asyncio.gather(*tasks)

    async def request(self, prompt: list[int] | str, new: int, start: float) -> Trace:
        """Send one streamed request. Raises Refused if no token comes back."""
        began = time.perf_counter() - start
        payload = json.dumps(self._base | {"prompt": prompt, "max_tokens": new}).encode()
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        writer.write(
            f"POST {self._url.path} HTTP/1.1\r\nHost: {self._url.netloc}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in head.split(b"\r\n", 1)[0]:
                raise Refused((head + await reader.read(2000)).decode(errors="replace"))
            times, stated, decode_s = await _token_times(reader, start)
        finally:
            writer.close()
        if not times:
            raise Refused("the answer had no tokens")
        if decode_s is not None and stated is not None and stated > 1:
            gap = decode_s / (stated - 1)
            return Trace(began, tuple(times[-1] - gap * left for left in reversed(range(stated))))
        # A token may have no text, and an event several tokens: trust the server's count.
        times += [times[-1]] * ((stated or 0) - len(times))
        return Trace(began, tuple(times))


async def _token_times(
    reader: asyncio.StreamReader, start: float
) -> tuple[list[float], int | None, float | None]:
    """Return the arrival of each event with text, the token count that the server reports, and the
    seconds from the first token to the last if it reports them. If no token has text, the arrival
    of the first event of the answer is that of the tokens.

    llama.cpp sends tokens whose bytes make no character together with later ones, as most tokens of
    random weights, but reports the time that they took.
    """
    times: list[float] = []
    silent: list[float] = []
    stated = decode_s = None
    while line := await reader.readline():
        if not line.startswith(b"data: {"):
            continue  # chunk sizes, blank lines, comments, [DONE]
        event = json.loads(line[6:])
        if "error" in event:
            raise Refused(str(event["error"]))
        if event.get("usage"):
            stated = event["usage"]["completion_tokens"]
        if event.get("timings"):
            decode_s = event["timings"]["predicted_ms"] / 1e3
        choices = event.get("choices") or ()
        if choices:
            has_text = any(choice.get("text") for choice in choices)
            (times if has_text else silent).append(time.perf_counter() - start)
    return times or silent[: bool(stated)], stated, decode_s
