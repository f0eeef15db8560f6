"""`python -m bench bfcl`: accuracy of function calls in BFCL's simple and parallel cases.

Questions and answers are those of the package `bfcl-eval` (`pip download --no-deps bfcl-eval`,
unpacked; `--data` is its folder `bfcl_eval/data`). A call is correct if it names the right
function, gives all required arguments and no unknown ones, and each value is one of the listed
ones: strings are compared without case, spaces and punctuation, as the leaderboard does. In a
parallel case all expected calls must be there, in any order, and no others. Any server with
OpenAI's chat API is scored in the same way: `--base-url`, or ours beside llama-server with the same
weights (`--gguf`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any, Literal

import openai

from bench.harness.peers import llama_server
from bench.harness.targets import HttpTarget

PORT = 18470
Choice = Literal["auto", "required"]
CATEGORIES = {"simple": "simple_python", "parallel": "parallel"}
CONCURRENCY = 4
MAX_TOKENS = 320
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def cases(data: Path, per_category: int) -> list[dict[str, Any]]:
    """Sample each category with a fixed seed; cases have messages, tools and the expected calls."""
    chosen = []
    for name, stem in CATEGORIES.items():
        asked = _lines(data / f"BFCL_v4_{stem}.json")
        right = {
            a["id"]: a["ground_truth"]
            for a in _lines(data / "possible_answer" / f"BFCL_v4_{stem}.json")
        }
        for case in random.Random(7).sample(asked, per_category):
            tools = [{"type": "function", "function": _function(f)} for f in case["function"]]
            chosen.append(
                {
                    "category": name,
                    "id": case["id"],
                    "messages": case["question"][0],
                    "tools": tools,
                    "right": right[case["id"]],
                }
            )
    return chosen


def verdict(case: dict[str, Any], calls: list[tuple[str, str]]) -> str:
    """Return "" for correct calls, else the reason why they are wrong."""
    if len(calls) != len(case["right"]):
        return f"{len(calls)} calls, expected {len(case['right'])}"
    left = list(case["right"])
    for name, text in calls:
        try:
            arguments = json.loads(text)
        except ValueError:
            return "arguments are not JSON"
        found = next((r for r in left if _matches(name, arguments, r, case["tools"])), None)
        if found is None:
            return f"{name}({text}) is not one of the expected calls"
        left.remove(found)
    return ""


async def score(base_url: str, chosen: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
    """Send all cases to a server, some concurrently; count the correct answers and collect the
    wrong ones."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key="any", timeout=600)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(case: dict[str, Any]) -> str:
        async with slots:
            answer = await client.chat.completions.create(
                model="default",
                messages=case["messages"],
                tools=case["tools"],
                tool_choice=choice,
                temperature=0,
                max_tokens=MAX_TOKENS,
            )
        called = answer.choices[0].message.tool_calls or []
        return verdict(
            case, [(c.function.name, c.function.arguments) for c in called if c.type == "function"]
        )

    began = time.perf_counter()
    verdicts = await asyncio.gather(*map(one, chosen))
    await client.close()
    result: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 1), "wrong": {}}
    for name in CATEGORIES:
        of_it = [v for v, case in zip(verdicts, chosen, strict=True) if case["category"] == name]
        result[name] = f"{of_it.count('')}/{len(of_it)}"
    for verdict_, case in zip(verdicts, chosen, strict=True):
        if verdict_:
            result["wrong"][case["id"]] = verdict_
    return result


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def _function(given: dict[str, Any]) -> dict[str, Any]:
    """Return the function with JSON Schema's type names and a name that every API accepts."""
    return {
        "name": _plain(given["name"]),
        "description": given["description"],
        "parameters": json_schema(given["parameters"]),
    }


def _plain(name: str) -> str:
    return name.replace(".", "_")


def json_schema(given: Any) -> Any:
    """Translate BFCL's parameter schema to JSON Schema's type names."""
    if isinstance(given, list):
        return [json_schema(item) for item in given]
    if not isinstance(given, dict):
        return given
    made = {key: json_schema(value) for key, value in given.items()}
    if isinstance(given.get("type"), str):
        made["type"] = TYPES.get(given["type"], given["type"])
    return made


def _matches(name: str, given: Any, right: dict[str, Any], tools: list[dict[str, Any]]) -> bool:
    ((wanted, accepted),) = right.items()
    if name != _plain(wanted) or not isinstance(given, dict):
        return False
    schema = next(t["function"]["parameters"] for t in tools if t["function"]["name"] == name)
    if any(key not in given for key in schema.get("required", [])):
        return False
    if any(key not in accepted for key in given):
        return False
    return all(
        any(_same(given[key], value) for value in values) if key in given else "" in values
        for key, values in accepted.items()
    )


def _same(given: Any, right: Any) -> bool:
    if isinstance(right, str) and isinstance(given, str):
        return _bare(given) == _bare(right)
    if isinstance(right, dict) and isinstance(given, dict):
        # Each value of an expected object is a list of accepted values.
        return set(given) <= set(right) and all(
            any(_same(given[key], value) for value in values) if key in given else "" in values
            for key, values in right.items()
        )
    if isinstance(right, list) and isinstance(given, list):
        return len(given) == len(right) and all(map(_same, given, right))
    if isinstance(right, bool) or isinstance(given, bool):
        return given is right
    return bool(given == right)


def _bare(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench bfcl", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder bfcl_eval/data")
    parser.add_argument("--base-url", help="score this server, as http://host:port/v1")
    parser.add_argument("--gguf", type=Path, help="or start our server with this model")
    parser.add_argument("--peers", type=Path, help="and llama-server from this peers folder")
    parser.add_argument("--per-category", type=int, default=20)
    parser.add_argument("--choice", default="auto", choices=["auto", "required"])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    chosen = cases(arguments.data, arguments.per_category)
    results: dict[str, Any] = {}
    if arguments.base_url:
        results[arguments.base_url] = asyncio.run(
            score(arguments.base_url, chosen, arguments.choice)
        )
    else:
        for target, url in _targets(arguments):
            target.start()
            try:
                results[target.name] = asyncio.run(score(url, chosen, arguments.choice))
            finally:
                target.stop()
    for name, result in results.items():
        counts = ", ".join(f"{category} {result[category]}" for category in CATEGORIES)
        print(f"{name}: {counts}, {result['seconds']} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2))


def _targets(arguments: argparse.Namespace) -> list[tuple[HttpTarget, str]]:
    command = (
        f"{arguments.python} -m penstock.cli.main serve {arguments.gguf} --host 127.0.0.1"
        f" --port {PORT} --context 4096 --max-seqs {CONCURRENCY} --disable-access-log"
    )
    url = f"http://127.0.0.1:{PORT}/v1"
    found = [(HttpTarget("penstock", command, url), url)]
    if arguments.peers:
        peer = llama_server(
            arguments.peers,
            PORT + 1,
            arguments.gguf,
            parallel=CONCURRENCY,
            max_model_len=4096,
            more="--jinja",
        )
        found.append((peer, f"http://127.0.0.1:{PORT + 1}/v1"))
    return found


if __name__ == "__main__":
    main()
