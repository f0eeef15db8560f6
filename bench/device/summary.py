"""`python -m bench.device.summary FOLDER`: print one line per headline figure of results.jsonl,
beside its floor and the peers' published figures, and every failure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Peer:
    """A published figure. `card`: part of the device's name; `section` and `name`: as recorded."""

    card: str
    section: str
    name: str
    key: str
    value: float
    source: str


PEERS = (
    Peer("H200", "qwen3-8b", "run 256 x 1024/1024", "out_tok_s", 8497, "SGLang, FlashInfer"),
    Peer("H200", "qwen3-8b", "run 256 x 1024/1024", "out_tok_s", 7555, "SGLang, FA3"),
    Peer("H100", "llama-8b", "decode 1", "tok_s", 154, "vLLM"),
    Peer("H100", "llama-8b", "decode 1", "tok_s", 158, "SGLang, short context"),
)

_KEYS = ("tok_s", "out_tok_s", "ms", "s", "tb_s", "tflop_s", "us", "ttft_p50_ms", "idle")


def main() -> int:
    """Print the summary of a folder's results. Returns 1 if there are none."""
    path = Path(sys.argv[1]) / "results.jsonl"
    if not path.exists():
        print("no results")
        return 1
    lines = [json.loads(line) for line in path.open()]
    print("\n==== summary")
    for text in summary(lines):
        print(text)
    return 0


def summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines of text: the card, failures, then figures."""
    card = next((line["name"] for line in lines if "multiprocessors" in line), "no GPU")
    yield f"card: {card}"
    for line in lines:
        if line.get("failed"):
            yield f"FAILED {line['section']}: {line.get('name')}: {line['failed']}"
        elif line.get("passed") == "False":
            yield f"WRONG  {line['section']}: {line['name']}: {_figures(line)}"
        elif "Traceback" in str(line.get("note")):
            yield f"FAILED {line['section']}: {str(line['note']).strip().splitlines()[-1]}"
    passed = sum(line.get("passed") == "True" for line in lines)
    if passed:
        yield f"check: {passed} comparisons passed"
    for line in lines:
        if _is_headline(line):
            yield f"{line['section']:<14} {line['name']:<28} {_figures(line)}{_peers(card, line)}"


def _is_headline(line: dict[str, Any]) -> bool:
    name = str(line.get("name"))
    return line.get("passed") is None and name.startswith(
        ("copy", "product", "decode ", "run ", "server ", "attention", "linear ", "sample", "load,")
    )


def _figures(line: dict[str, Any]) -> str:
    shown = [f"{key} {line[key]:.4g}" for key in _KEYS if isinstance(line.get(key), float)]
    if isinstance(line.get("of_floor"), float):
        shown.append(f"of floor {100 * line['of_floor']:.0f} %")
    for key in ("error", "worst"):
        if isinstance(line.get(key), float):
            shown.append(f"{key} {line[key]:.3g}")
    return "  ".join(shown)


def _peers(card: str, line: dict[str, Any]) -> str:
    """Return the ratio to each published figure of the same card and run, e.g. "1.12 x SGLang"."""
    found = [
        f"{line[peer.key] / peer.value:.2f} x {peer.source}"
        for peer in PEERS
        if peer.card in card
        and (peer.section, peer.name) == (line["section"], line["name"])
        and isinstance(line.get(peer.key), float)
    ]
    return f"  ({', '.join(found)})" if found else ""


if __name__ == "__main__":
    raise SystemExit(main())
