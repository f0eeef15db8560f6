"""Questions that a model answers with the Python tool and without it.

The server is `penstock serve MODEL --enable-code-execution`. Both rounds send the same messages at
temperature 0; only `tools` differs. An answer is right if the expected number or text occurs in the
final text of the answer: numbers are compared without thousands separators, texts without case.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec

from bench.agent.figures import Figure, Section
from bench.harness.targets import ours

QUESTIONS = Path(__file__).parent / "questions"
PORT = 18530
MAX_TOKENS = 700
TIMEOUT_S = 900.0
PYTHON_TOOL = {"type": "code_interpreter", "container": {"type": "auto"}}
NUMBER = re.compile(r"-?\d[\d,_]*(?:\.\d+)?")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
Mode = Literal["with_tools", "without_tools"]


class Question(msgspec.Struct, frozen=True):
    """`file`: the attached file. `solution`: a Python expression with the value `answer`."""

    id: str
    question: str
    solution: str
    answer: str
    file: str | None = None


class Reply(msgspec.Struct, frozen=True):
    """The final text of one answer, its tool calls and its cost."""

    text: str
    calls: tuple[str, ...]
    seconds: float
    prompt_tokens: int
    answer_tokens: int
    finish: str


def questions() -> list[Question]:
    """Return the committed questions."""
    return msgspec.json.decode((QUESTIONS / "questions.json").read_bytes(), type=list[Question])


def is_right(answer: str, text: str) -> bool:
    """Whether the expected answer occurs in a text.

    A number with decimals matches a number that rounds to it; other numbers must be equal.
    """
    if not NUMBER.fullmatch(answer) or DATE.fullmatch(answer):
        return answer.lower() in text.lower()
    decimals = len(answer.partition(".")[2])
    for found in NUMBER.findall(text):
        number = found.replace(",", "").replace("_", "")
        if decimals == 0:
            if number.partition(".")[0] == answer and not number.partition(".")[2].strip("0"):
                return True
        elif abs(float(number) - float(answer)) <= 0.5 * 10**-decimals:
            return True
    return False


async def ask(client: httpx.AsyncClient, question: Question, mode: Mode) -> Reply:
    """Send one question. Raises httpx.HTTPStatusError if the server refuses it."""
    content: list[dict[str, Any]] = [{"type": "text", "text": question.question}]
    if question.file is not None:
        data = base64.b64encode((QUESTIONS / question.file).read_bytes()).decode()
        file = {"filename": question.file, "file_data": data}
        content.insert(0, {"type": "file", "file": file})
    body: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    if mode == "with_tools":
        body |= {"tools": [PYTHON_TOOL], "max_tool_rounds": 6}
    began = time.perf_counter()
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    said = answer.json()
    return Reply(
        said["choices"][0]["message"]["content"] or "",
        tuple(
            f"{c['arguments']} -> {c['result_content']}"
            for c in said.get("agentic_tool_calls") or ()
        ),
        round(time.perf_counter() - began, 1),
        said["usage"]["prompt_tokens"],
        said["usage"]["completion_tokens"],
        said["choices"][0]["finish_reason"],
    )


async def answers(
    base_url: str, asked: list[Question], mode: Mode, at_once: int
) -> dict[str, Reply]:
    """Return the answers to all questions, `at_once` of them side by side."""
    slots = asyncio.Semaphore(at_once)

    async def one(question: Question) -> Reply:
        async with slots:
            reply = await ask(client, question, mode)
        verdict = "right" if is_right(question.answer, reply.text) else "wrong"
        print(mode, question.id, verdict, f"{reply.seconds} s", flush=True)
        return reply

    async with httpx.AsyncClient(base_url=base_url, timeout=TIMEOUT_S) as client:
        replies = await asyncio.gather(*map(one, asked))
    return {question.id: reply for question, reply in zip(asked, replies, strict=True)}


def measure(model: str, *, base_url: str | None, only: str, at_once: int) -> Section:
    """Answer the questions whose id matches `only` in both modes.

    `base_url`: of a running server; None starts one.
    """
    asked = [question for question in questions() if re.search(only, question.id)]
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as home:
        server = None
        if base_url is None:
            server = ours(
                model,
                PORT,
                f"--enable-code-execution --store sqlite:///{home}/p.db --blobs {home}/blobs",
            )
            server.start()
            base_url = f"http://127.0.0.1:{PORT}"
        try:
            replies: dict[Mode, dict[str, Reply]] = {
                mode: asyncio.run(answers(base_url, asked, mode, at_once))
                for mode in ("without_tools", "with_tools")
            }
        finally:
            if server is not None:
                server.stop()
    return _section(model, asked, replies)


def _section(model: str, asked: list[Question], replies: dict[Mode, dict[str, Reply]]) -> Section:
    right = {
        mode: [q.id for q in asked if is_right(q.answer, replies[mode][q.id].text)]
        for mode in replies
    }
    wrong_with_tools = len(asked) - len(right["with_tools"])
    wrong_without = len(asked) - len(right["without_tools"])
    figure = Figure(
        f"wrong answers of {len(asked)} with Python (without: {wrong_without})",
        wrong_with_tools,
        "",
        wrong_without - 1,
        wrong_without - 1,
    )
    rows = {
        question.id: {
            "expected": question.answer,
            **{mode: question.id in right[mode] for mode in right},
            "calls": len(replies["with_tools"][question.id].calls),
        }
        for question in asked
    }
    details = {
        "model": Path(model).name,
        "right": {mode: f"{len(ids)}/{len(asked)}" for mode, ids in right.items()},
        "rows": rows,
        "replies": json.loads(msgspec.json.encode(replies)),
    }
    return Section((figure,), details)


def question_table(section: Section) -> str:
    """Return one Markdown row per question."""
    lines = [
        "| question | expected | without tools | with Python | calls |",
        "|---|---|---|---|---|",
    ]
    marks = {True: "right", False: "wrong"}
    for id, row in section.details["rows"].items():
        lines.append(
            f"| {id} | {row['expected']} | {marks[row['without_tools']]} |"
            f" {marks[row['with_tools']]} | {row['calls']} |"
        )
    return "\n".join(lines)
