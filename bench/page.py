"""Measures the web page of a running server in Chromium.

    penstock serve                        # in another terminal
    python -m bench page http://127.0.0.1:1234 --out page.json

- First paint: of a new chat, with an empty cache.
- A chat of 1,000 messages: the time until the last answer is shown, and the long tasks meanwhile.
- Streams: an answer of up to 100 kB, which the measurement hands to the page in place of the
  server, in pieces of a token's size.
- Rest: the CPU time of the page's main thread while nothing happens.

A long task is one of more than 50 ms, in which the page does not react.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

MESSAGES: Final = 1000
STREAM_BYTES: Final = 100_000
PIECE_CHARS: Final = 4
PIECES_PER_S: Final = (50, 200, 1000)
STREAM_S: Final = 25
REST_S: Final = 20
ANSWER: Final = (
    "Some **bold** words, `code` and a [link](https://a.example) in a paragraph of text.\n\n"
    "- one point\n- another point\n\n"
    "```python\nfor number in range(10):\n    print(number ** 2)\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
)
OBSERVE: Final = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const { startTime, duration } of list.getEntries()) longTasks.push({ startTime, duration });
}).observe({ type: 'longtask', buffered: true });
window.frames = [];
requestAnimationFrame(function next(now) { window.frames.push(now); requestAnimationFrame(next); });
"""
# Answers requests for a message's events with a stream of our own.
STREAM: Final = """
const real = window.fetch;
window.fetch = (url, init) => {
  if (!String(url).endsWith('/events')) return real(url, init);
  const encoder = new TextEncoder();
  const frame = (name, data) =>
    encoder.encode(`event: ${name}\\ndata: ${JSON.stringify(data)}\\n\\n`);
  const { pieces, rate } = window.stream;
  const body = new ReadableStream({
    async start(controller) {
      controller.enqueue(frame('block', { index: 0, block: { type: 'text', text: '' } }));
      const began = performance.now();
      for (let sent = 0; sent < pieces.length; ) {
        const due = Math.min(pieces.length, Math.ceil((performance.now() - began) * rate / 1000));
        for (; sent < due; sent++) {
          controller.enqueue(frame('append', { index: 0, text: pieces[sent] }));
        }
        await new Promise((resolve) => setTimeout(resolve, 4));
      }
      controller.enqueue(frame('info', { status: 'done', info: {} }));
      controller.close();
      window.streamed = true;
    },
  });
  return Promise.resolve(new Response(body));
};
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="bench page", description="Measure the web page of a running server."
    )
    parser.add_argument("url", help="of the server, such as http://127.0.0.1:1234")
    parser.add_argument("--browser", default="/usr/bin/chromium", help="path of Chromium")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args(arguments)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.browser, args=["--no-sandbox"])
        found = measure(browser, options.url)
        browser.close()
    text = json.dumps(found, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


def measure(browser: Browser, url: str) -> dict[str, Any]:
    """Return all figures of the page of the server at `url`. Times in ms unless named otherwise."""
    return {
        "first_paint": first_paint(browser, url),
        "long_chat": long_chat(browser, url),
        "streams": [streamed(browser, url, rate) for rate in PIECES_PER_S],
        "rest_cpu_percent": rest(browser, url),
    }


def first_paint(browser: Browser, url: str) -> dict[str, float]:
    """Return the median times of five visits with an empty cache."""
    paints, contents = [], []
    for _ in range(5):
        page = open_page(browser, url + "/ui/")
        page.get_by_role("textbox", name="Message", exact=True).wait_for()
        times = page.evaluate(
            "() => Object.fromEntries(performance.getEntriesByType('paint')"
            ".map((entry) => [entry.name, entry.startTime]))"
        )
        paints.append(times["first-paint"])
        contents.append(times["first-contentful-paint"])
        page.context.close()
    return {
        "first_paint": round(statistics.median(paints)),
        "first_content": round(statistics.median(contents)),
    }


def long_chat(browser: Browser, url: str) -> dict[str, Any]:
    """Return the figures of opening and scrolling a chat of MESSAGES messages."""
    chat = import_chat(url, [ANSWER] * (MESSAGES // 2))
    page = open_page(browser, f"{url}/ui/chats/{chat}")
    page.wait_for_function(
        f"() => document.querySelectorAll('[role=log] article').length === {MESSAGES}",
        timeout=120_000,
    )
    shown = page.evaluate("performance.now()")
    page.wait_for_timeout(3000)
    opening = long_tasks(page)
    page.get_by_role("log", name="Messages").hover()
    for _ in range(40):
        page.mouse.wheel(0, -900)
        page.wait_for_timeout(16)
    scrolling = long_tasks(page)
    page.get_by_role("textbox", name="Message", exact=True).press_sequentially("typing", delay=50)
    typing = long_tasks(page)
    page.context.close()
    return {"shown": round(shown), "opening": opening, "scrolling": scrolling, "typing": typing}


def streamed(browser: Browser, url: str, rate: int) -> dict[str, Any]:
    """Return the figures of an answer that arrives at `rate` pieces a second, for at most STREAM_S
    seconds and STREAM_BYTES bytes."""
    size = min(STREAM_BYTES, rate * PIECE_CHARS * STREAM_S)
    text = (ANSWER * (size // len(ANSWER) + 1))[:size]
    pieces = [text[start : start + PIECE_CHARS] for start in range(0, size, PIECE_CHARS)]
    chat, answer = running_chat(url)
    page = open_page(browser, "about:blank")
    page.add_init_script(STREAM)
    page.add_init_script(f"window.stream = {json.dumps({'pieces': pieces, 'rate': rate})}")
    page.goto(f"{url}/ui/chats/{chat}")
    page.get_by_role("article", name="Answer").wait_for()
    # The model's own answer would only take the processor from the page.
    httpx.post(f"{url}/ui/api/chats/{chat}/messages/{answer}/stop", json={}, timeout=60)
    page.wait_for_function("() => window.streamed", timeout=240_000)
    page.wait_for_timeout(1000)
    frames = page.evaluate("window.frames")
    gaps = sorted(after - before for before, after in pairwise(frames))
    found = {
        "bytes": size,
        "pieces_per_s": rate,
        "long_tasks": long_tasks(page),
        "frame_p50": round(gaps[len(gaps) // 2], 1),
        "frame_p99": round(gaps[len(gaps) * 99 // 100], 1),
    }
    page.context.close()
    return found


def rest(browser: Browser, url: str) -> float:
    """Return the CPU time of the page's main thread while nothing happens, in percent of a core."""
    chat = import_chat(url, [ANSWER] * 20)
    page = open_page(browser, f"{url}/ui/chats/{chat}", observe=False)
    page.get_by_text("question 19").wait_for()
    page.wait_for_timeout(3000)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def used() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

    began, before = time.monotonic(), used()
    page.wait_for_timeout(REST_S * 1000)
    percent = 100 * (used() - before) / (time.monotonic() - began)
    page.context.close()
    return round(percent, 2)


def open_page(browser: Browser, address: str, *, observe: bool = True) -> Page:
    """Open an address in a browser profile of its own."""
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    if observe:
        page.add_init_script(OBSERVE)
    page.goto(address)
    return page


def long_tasks(page: Page) -> dict[str, float]:
    """Return the long tasks since the last call."""
    tasks = [task["duration"] for task in page.evaluate("window.longTasks.splice(0)")]
    return {"count": len(tasks), "longest": round(max(tasks, default=0)), "sum": round(sum(tasks))}


def import_chat(url: str, answers: Sequence[str]) -> str:
    """Store a chat with these answers. Returns its id."""
    messages: list[Mapping[str, Any]] = []
    parent = None
    for index, answer in enumerate(answers):
        for role, text in (("user", f"question {index}"), ("assistant", answer)):
            id = f"{role}{index}"
            block = {"type": "text", "text": text}
            message = {"id": id, "parent": parent, "role": role, "created_at": 1_700_000_000}
            messages.append({**message, "blocks": [block], "info": {}})
            parent = id
    document: dict[str, Any] = {
        "format": "penstock-chat-1",
        "title": "Measured",
        "settings": {},
        "tail": parent,
        "messages": messages,
    }
    stored = httpx.post(f"{url}/ui/api/chats/import", json=document, timeout=60)
    return str(stored.raise_for_status().json()["id"])


def running_chat(url: str) -> tuple[str, str]:
    """Start a long answer, so that the page follows its events. Returns the ids of its chat and of
    itself."""
    grammar = {"type": "regex", "value": "([a-z]{2,8} ){4000}"}
    settings = {"grammar": grammar, "max_tokens": 7000}
    made = httpx.post(f"{url}/ui/api/chats", json={"settings": settings}).raise_for_status()
    chat = made.json()["id"]
    body = {"blocks": [{"type": "text", "text": "go"}]}
    sent = httpx.post(f"{url}/ui/api/chats/{chat}/messages", json=body, timeout=60)
    return str(chat), str(sent.raise_for_status().json()["answer"]["id"])


if __name__ == "__main__":
    main()
