"""Whisper beside faster-whisper, whisper.cpp and transformers."""

from __future__ import annotations

import base64
import io
import sys
import wave
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from bench.media.peers.engines import Engine, HttpEngine, WorkerEngine
from bench.media.peers.whisper_ggml import write_ggml

WORKER: Final = Path(__file__).parents[2] / "workers" / "whisper_worker.py"
RATE: Final = 16_000
PORT: Final = 18470
OURS: Final = "penstock"
KINDS: Final = {
    "f32": {OURS: "f32", "faster-whisper": "float32", "transformers": "float32"},
    "16 bits": {OURS: "auto", "whisper.cpp": "f16", "transformers": "bfloat16"},
    "8 bits": {OURS: "int8", "faster-whisper": "int8", "whisper.cpp": "q8_0"},
}
"""Types of the weights that are compared with each other -> engine -> its name of the type."""


@dataclass(frozen=True, slots=True)
class Models:
    """The model in the forms of the engines, and the interpreters of their libraries.

    - `folder`: the form of transformers; `ctranslate2`: that of faster-whisper.
    - `pythons`: engine -> its interpreter; engines without one are left out.
    """

    folder: Path
    ctranslate2: Path | None
    pythons: dict[str, str]


def measure(
    models: Models,
    kinds: Sequence[str],
    recordings: Sequence[Path],
    threads: int,
    rounds: int,
    scratch: Path,
) -> list[dict[str, Any]]:
    """Return the median CPU seconds of `rounds` rounds, after one that is not counted, for each of
    `kinds` and each engine: of the encoder over 30 seconds, and of a whole transcript of the first
    30 seconds of `recordings`. Each kind is reported to standard error when it is done."""
    heard = samples_of(recordings)
    path = scratch / "samples.npy"
    rows: list[dict[str, Any]] = []
    for kind in kinds:
        with _engines(models, kind, threads, scratch) as engines:
            times: dict[tuple[str, str], list[float]] = {}
            texts: dict[str, str] = {}
            for count in range(rounds + 1):
                # Other noise in each round, because Penstock keeps encoded recordings.
                noise = np.random.default_rng(count).normal(0, 1e-4, len(heard))
                samples = (heard + noise).astype(np.float32)
                np.save(path, samples)
                spoken = _wav(samples)
                for name, (encoder, transcriber) in engines.items():
                    seconds = encoder.ask({"do": "encode", "samples": str(path)})["cpu_s"]
                    began = transcriber.cpu_s()
                    texts[name] = _transcript(transcriber, str(path), spoken)
                    if count:
                        times.setdefault((name, "encode"), []).append(seconds)
                        times.setdefault((name, "transcribe"), []).append(
                            transcriber.cpu_s() - began
                        )
        found_rows = [
            {
                "kind": kind,
                "what": what,
                "engine": name,
                "cpu_s": round(median(found), 3),
                "text": texts[name],
            }
            for (name, what), found in times.items()
        ]
        print(table(found_rows), file=sys.stderr, flush=True)
        rows += found_rows
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table; ratios are to Penstock."""
    peers = sorted({row["engine"] for row in rows} - {OURS})
    titles = [OURS, *(text for peer in peers for text in (peer, "times faster"))]
    lines = [f"| | weights | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for what in ("encode", "transcribe"):
        for kind in dict.fromkeys(row["kind"] for row in rows):
            of = {
                row["engine"]: row["cpu_s"]
                for row in rows
                if (row["kind"], row["what"]) == (kind, what)
            }
            cells = [f"{of[OURS]:.2f}"]
            for peer in peers:
                known = peer in of
                cells += [f"{of[peer]:.2f}", f"{of[peer] / of[OURS]:.2f}"] if known else ["", ""]
            lines.append(f"| {what} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


@contextmanager
def _engines(
    models: Models, kind: str, threads: int, scratch: Path
) -> Iterator[dict[str, tuple[Engine, Engine]]]:
    """Start the engines of `kind`; yield (encoder, transcriber) of each."""
    with ExitStack() as stack:
        found: dict[str, tuple[Engine, Engine]] = {}
        for name, own in KINDS[kind].items():
            python = models.pythons.get(name)
            path = _model(models, name, own, scratch)
            if python is None or path is None:
                continue
            command = [python, str(WORKER), f"{name}={own}", str(path), str(threads)]
            worker: Engine = WorkerEngine(name, command, scratch / f"{name}.log")
            stack.callback(worker.stop)
            found[name] = worker, worker
            if name == OURS:
                server = _server(python, models.folder, own, threads, scratch)
                stack.callback(server.stop)
                found[name] = worker, server
        yield found


def _model(models: Models, name: str, own: str, scratch: Path) -> Path | None:
    match name:
        case "faster-whisper":
            return models.ctranslate2
        case "whisper.cpp":
            path = scratch / f"ggml-{own}.bin"
            return path if path.exists() else write_ggml(models.folder, path, own)
        case _:
            return models.folder


def _server(python: str, folder: Path, own: str, threads: int, scratch: Path) -> HttpEngine:
    more = {"f32": "--dtype float32", "int8": "-q int8"}.get(own, "")
    command = (
        f"{python} -m penstock serve {folder} {more} --threads {threads}"
        f" --host 127.0.0.1 --port {PORT}"
    )
    return HttpEngine(OURS, command, PORT, scratch / "penstock-server.log")


def _transcript(engine: Engine, path: str, spoken: str) -> str:
    if not isinstance(engine, HttpEngine):
        return str(engine.ask({"do": "transcribe", "samples": path})["text"])
    audio = {"type": "input_audio", "input_audio": {"data": spoken, "format": "wav"}}
    content = [audio, {"type": "text", "text": "language: en"}]
    body = {"model": "default", "messages": [{"role": "user", "content": content}]}
    return str(engine.ask(body)["choices"][0]["message"]["content"])


def samples_of(recordings: Sequence[Path], duration_s: float = 30.0) -> np.ndarray:
    """Return the first `duration_s` seconds of all recordings one after another, mono, 16 kHz,
    float32."""
    import av

    parts: list[np.ndarray] = []
    for recording in recordings:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        with av.open(str(recording)) as file:
            for frame in file.decode(audio=0):
                parts += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    return np.ascontiguousarray(np.concatenate(parts)[: round(duration_s * RATE)], np.float32)


def _wav(samples: np.ndarray) -> str:
    """Return a WAV file with 16-bit samples in base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RATE)
        written.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return base64.b64encode(file.getvalue()).decode()
