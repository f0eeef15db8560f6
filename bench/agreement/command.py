"""Compare greedy tokens and log-probabilities of small random models, in GGUF files, with those of
llama.cpp and of transformers.

    python -m bench agreement --peers VENV [--only qwen3_5 lfm2] [--out RESULT.md]

VENV is an environment with the PyPI package `xllamacpp`. It need not be this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.agreement.cases import Write, cases
from bench.agreement.vocabulary import add_vocabulary
from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.llm import LLM

WORKER: Final = Path(__file__).parents[1] / "workers" / "xllamacpp_logprobs.py"
PROMPT: Final = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
PROMPTS: Final = [PROMPT, PROMPT[::-1], PROMPT[:5]]
TOKENS: Final = 16
TOP: Final = 20
TOLERANCE: Final = 2e-3
"""Largest difference between log-probabilities that counts as agreement."""

Steps = list[tuple[int, dict[int, float]]]
"""Per generated token, its id and the log-probabilities of likely tokens."""
GELU_TOLERANCE: Final = 0.1
"""The same for models with GELU, which llama.cpp reads from a table of float16."""


@dataclass(frozen=True)
class Outcome:
    """A side's steps for each prompt, or why it has none."""

    steps: list[Steps] | None
    error: str = ""


def main() -> None:
    """Compare the models that the command line names, and print a table."""
    parser = argparse.ArgumentParser(
        prog="bench agreement", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peers", type=Path, required=True, help="environment with xllamacpp")
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of the cases' names")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    parser.add_argument("--keep", type=Path, help="keep the models in this folder")
    arguments = parser.parse_args()
    rows = ["| model | Penstock and llama.cpp | transformers and llama.cpp |", "|---|---|---|"]
    print("\n".join(rows))
    for name, write in cases().items():
        if name.startswith(tuple(arguments.only)):
            rows.append(f"| {name} | {' | '.join(_compared(name, write, arguments))} |")
            print(rows[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(rows) + "\n")


def _compared(name: str, write: Write, arguments: argparse.Namespace) -> tuple[str, str]:
    """Return how far Penstock and transformers are from llama.cpp."""
    with TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        path = folder / f"{name.replace(' ', '_')}.gguf"
        plain = Path(scratch) / "plain.gguf"
        model = write(plain)
        add_vocabulary(plain, path)
        theirs = _llama_cpp(path, arguments.peers, model.config.vocab_size)
        if theirs.steps is None:
            error = _penstock(path).error
            also = f"; Penstock: {error}" if error else ""
            return f"{theirs.error}{also}", ""
        tolerance = GELU_TOLERANCE if "gelu" in str(model.config.to_dict()) else TOLERANCE
        ours, truth = (
            side.error if side.steps is None else _difference(side.steps, theirs.steps, tolerance)
            for side in (_penstock(path), _transformers(model))
        )
        return ours, truth


def _difference(ours: list[Steps], theirs: list[Steps], tolerance: float) -> str:
    """Return the largest difference between log-probabilities at the positions up to the first one
    of each prompt at which the tokens differ, and the number of equal tokens."""
    largest, equal = 0.0, 0
    for mine, other in zip(ours, theirs, strict=True):
        for (token, top), (their_token, all_of_them) in zip(mine, other, strict=False):
            largest = max(largest, *(abs(value - all_of_them[one]) for one, value in top.items()))
            if token != their_token:
                break
            equal += 1
    verdict = "agree" if largest < tolerance else "differ"
    return f"{verdict}: {largest:.1e}, {equal} tokens"


def _llama_cpp(path: Path, peers: Path, vocabulary: int) -> Outcome:
    arguments = [str(path), json.dumps(PROMPTS), str(TOKENS), str(vocabulary)]
    done = subprocess.run(
        [peers / "bin" / "python", WORKER, *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            found = json.loads(line.removeprefix("RESULT "))
            return Outcome(
                [[(t, {int(k): v for k, v in top.items()}) for t, top in steps] for steps in found]
            )
    return Outcome(None, f"llama.cpp: {_reason(done.stderr)}")


def _reason(log: str) -> str:
    """Return the line of llama.cpp's log that says why it failed."""
    marks = ("GGML_ASSERT", "error loading model", "rror")
    lines = log.splitlines()
    for mark in marks:
        for line in lines:
            if mark in line:
                return line.rpartition(" E ")[2].strip().replace("|", "/")
    return lines[-1] if lines else "no output"


def _penstock(path: Path) -> Outcome:
    try:
        llm = LLM(path, dtype="f32", device="cpu", max_model_len=256, threads=1, max_num_seqs=1)
    except ModelError as error:
        return Outcome(None, f"Penstock: {str(error).partition(': ')[2]}")
    with llm:
        answers = llm.generate(
            PROMPTS, sampling=Sampling(temperature=0), max_tokens=TOKENS, top_logprobs=TOP
        )
    return Outcome(
        [
            [(one.token_id, {t: v for t, _, v in one.top}) for one in answer.choices[0].logprobs]
            for answer in answers
        ]
    )


def _transformers(model: Any) -> Outcome:
    return Outcome([_greedy(model, list(prompt)) for prompt in PROMPTS])


def _greedy(model: Any, tokens: list[int]) -> Steps:
    import torch

    steps: Steps = []
    with torch.no_grad():
        for _ in range(TOKENS):
            values = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].log_softmax(-1)
            tokens.append(int(values.argmax()))
            steps.append((tokens[-1], dict(enumerate(values.tolist()))))
            if tokens[-1] == len(values) - 1:
                break
    return steps
