"""Speedup by speculation, on text that copies its prompt and on text that does not.

`python -m bench speculation --model M` runs in one process, without HTTP: one stream at a time,
then batches. The two engines alternate, and pairs of runs with the same seeds make the same tokens.
`--threads 1` compares CPU time, which other programs disturb less than wall time. With more threads
wall time is compared, because threads spin while they wait for each other.

`--scripted` measures the speedup by drafts whose acceptance follows a published table instead (see
`scripted_acceptance`); with `--draft-model` or `--mtp` the time of that drafter counts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.machine_facts import facts
from bench.scripted_acceptance import TOKENS_PER_STEP, measure_scripted
from penstock.config import EngineSettings, read_environment
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.model_loader import load_text_parts
from penstock.runtime import CpuRuntime
from penstock.runtime.load import load_runtime
from penstock.runtime.protocol import Runtime
from penstock.text import Tokenizer, load_tokenizer

PASSAGE = """The river rises in the hills north of the town and runs for forty miles to the sea.
In spring it floods the lower meadows, and the farmers move their sheep to the ridge. The old mill
at the bridge was built in 1784 by a family of weavers; it burned down twice and was rebuilt both
times with stone from the quarry. Since 1920 it has held a small museum of looms, letters and maps.
Visitors come by the narrow railway, which stops at the bridge on request from May to October."""
CODE = '''def read_table(path, separator=",", header=True):
    """Rows of a table as dictionaries."""
    rows = []
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\\n") for line in file if line.strip()]
    names = lines[0].split(separator) if header else None
    for line in lines[1 if header else 0 :]:
        cells = line.split(separator)
        if names is None:
            names = [f"column_{index}" for index in range(len(cells))]
        if len(cells) != len(names):
            raise ValueError(f"{path}: a row has {len(cells)} cells instead of {len(names)}")
        rows.append(dict(zip(names, cells)))
    return rows
'''
COPYING = {
    "passage": f"Repeat this text word for word:\n\n{PASSAGE}",
    "code edit": f"Rename the function to load_table and give back all of the code:\n\n{CODE}",
    "quotes": f"Summarize this by quoting its most important sentences:\n\n{PASSAGE}",
}
FRESH = {
    "story": "Write a short story about a lighthouse keeper who finds a map.",
    "plan": "How would you plan a garden for a school? Think of everything.",
    "letter": "Write a letter to a friend about a day in an unknown city.",
}


def measure(
    model: str, new: int, repeats: int, threads: int | None, only: str = ""
) -> dict[str, Any]:
    files = resolve_model(model, read_environment().home)
    tokenizer = load_tokenizer(load_text_parts(files))
    settings = EngineSettings(model=model, max_num_seqs=8, threads=threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    runtime = load_runtime(settings)
    cores = {on: _core(runtime, settings, on) for on in (False, True)}
    for core in cores.values():
        _seconds(core, [chat_request(tokenizer, FRESH["plan"], 1.0, 0, "warm", 24)], clock)
    result: dict[str, Any] = {"machine": facts(), "new_tokens": new, "threads": threads}
    greedy, free = 0.0, 1.0
    for name, prompts, temperature, streams in (
        ("copying, 1 stream", COPYING, greedy, 1),
        ("copying at temperature 0.7, 1 stream", COPYING, 0.7, 1),
        ("fresh, 1 stream", FRESH, free, 1),
        ("copying, 8 streams", COPYING, greedy, 8),
        ("fresh, 8 streams", FRESH, free, 8),
    ):
        if only in name:
            figures = _compare(cores, tokenizer, prompts, temperature, streams, new, repeats, clock)
            result[name] = figures
    runtime.close()
    return result


def _core(runtime: Runtime, settings: EngineSettings, speculation: bool) -> EngineCore:
    """Both engines share the weights, the cache and the threads, and take turns."""
    own = msgspec.structs.replace(
        settings,
        enable_prefix_caching=False,
        speculative_algorithm="ngram" if speculation else "none",
    )
    return EngineCore.for_runtime(runtime, own)


def _compare(
    cores: dict[bool, EngineCore],
    tokenizer: Tokenizer,
    prompts: dict[str, str],
    temperature: float,
    streams: int,
    new: int,
    repeats: int,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """Return tokens/s without and with speculation, the median ratio of the pairs of runs, and the
    standard error of the mean of the ratios' logarithms."""
    figures: dict[str, Any] = {}
    ratios, logs = [], []
    before = cores[True].gauges()
    for name, prompt in prompts.items():
        speeds: dict[bool, list[float]] = {False: [], True: []}
        for repeat in range(repeats):
            for on in (False, True) if repeat % 2 else (True, False):
                core = cores[on]
                requests = [
                    chat_request(tokenizer, prompt, temperature, 10 * repeat + row, f"{row}", new)
                    for row in range(streams)
                ]
                tokens, seconds = _seconds(core, requests, clock)
                speeds[on].append(tokens / seconds)
        pairs = zip(speeds[True], speeds[False], strict=True)
        pair_ratios = [with_it / without for with_it, without in pairs]
        ratios.append(statistics.median(pair_ratios))
        logs += [math.log(ratio) for ratio in pair_ratios]
        figures[name] = {
            "without": round(statistics.median(speeds[False]), 1),
            "with": round(statistics.median(speeds[True]), 1),
            "ratio": round(ratios[-1], 3),
        }
    after = cores[True].gauges()
    drafted = after.draft_tokens - before.draft_tokens
    confirmed = after.accepted_tokens - before.accepted_tokens
    figures["ratio"] = round(statistics.geometric_mean(ratios), 3)
    figures["all_pairs"] = {
        "pairs": len(logs),
        "median": round(math.exp(statistics.median(logs)), 4),
        "standard_error": round(statistics.stdev(logs) / len(logs) ** 0.5, 4),
    }
    figures["drafted"], figures["confirmed"] = drafted, confirmed
    return figures


def measure_script(
    model: str,
    new: int,
    threads: int | None,
    draft_model: str | None,
    mtp: bool,
    streams: Sequence[int],
    lengths: Sequence[int],
    draft_vocabulary: int,
    outside: float,
) -> dict[str, Any]:
    """Return the figures of `bench.scripted_acceptance` for a model."""
    tokenizer = load_tokenizer(load_text_parts(resolve_model(model, read_environment().home)))
    settings = EngineSettings(
        model=model,
        max_num_seqs=8,
        threads=threads,
        draft_model=draft_model,
        # Without drafts, a model with recurrent layers has no room for those of the script.
        speculative_algorithm="mtp" if mtp else "ngram",
        draft_vocabulary=draft_vocabulary,
    )
    runtime = load_runtime(settings)
    assert isinstance(runtime, CpuRuntime), "only the CPU runtime has drafters"
    prompts = [tuple(tokenizer.encode(prompt)) for prompt in FRESH.values()]
    figures = measure_scripted(runtime, settings, prompts, new, streams, lengths, outside)
    runtime.close()
    drafter = draft_model or ("mtp" if mtp else "no time")
    given = {"new_tokens": new, "threads": threads, "drafter": drafter, "outside": outside}
    given["draft_vocabulary"] = draft_vocabulary
    return {"machine": facts(), **given, **figures}


def chat_request(
    tokenizer: Tokenizer, prompt: str, temperature: float, seed: int, id: str, new: int
) -> TokenRequest:
    text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    return TokenRequest(
        id=id,
        token_ids=tuple(tokenizer.encode(text)),
        sampling=Sampling(temperature=temperature),
        seed=seed,
        max_tokens=new,
        stop_token_ids=tokenizer.stop_ids,
    )


def _seconds(
    core: EngineCore, requests: list[TokenRequest], clock: Callable[[], float]
) -> tuple[int, float]:
    """Return the number of tokens after each request's first, and the seconds from the last of
    those first tokens."""
    for request in requests:
        core.submit(request)
    waiting, tokens, began = {request.id for request in requests}, 0, 0.0
    while core.has_work:
        chunks = core.step()
        if waiting:
            waiting -= {chunk.id for chunk in chunks}
            began = clock()
        else:
            tokens += sum(len(chunk.tokens) for chunk in chunks)
    return tokens, clock() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench speculation", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--new", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="kernel threads; 1: compare CPU time")
    parser.add_argument("--only", default="", help="run only cases whose name contains this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--scripted", action="store_true", help="scripted acceptance of drafts")
    parser.add_argument("--draft-model", help="with --scripted: this draft model's time counts")
    parser.add_argument("--mtp", action="store_true", help="with --scripted: the MTP head's time")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=(1, 8), help="with --scripted: streams at a time"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=tuple(TOKENS_PER_STEP),
        choices=tuple(TOKENS_PER_STEP),
        help="with --scripted: largest numbers of draft tokens",
    )
    parser.add_argument(
        "--draft-vocabulary", type=int, default=32768, help="with --scripted: as for the server"
    )
    parser.add_argument(
        "--outside",
        type=float,
        default=0.0,
        help="with --scripted: share of the answers that the draft vocabulary lacks",
    )
    given = parser.parse_args()
    if given.scripted:
        figures = measure_script(
            given.model,
            given.new,
            given.threads,
            given.draft_model,
            given.mtp,
            given.streams,
            given.lengths,
            given.draft_vocabulary,
            given.outside,
        )
    else:
        figures = measure(given.model, given.new, given.repeats, given.threads, given.only)
    result = json.dumps(figures, indent=1)
    print(result)
    if given.out:
        given.out.write_text(result + "\n")


if __name__ == "__main__":
    main()
