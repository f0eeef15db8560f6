"""The command line of `python -m bench media peers`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.harness.machine_facts import facts
from bench.media.peers import first_token, towers, whisper
from bench.media.peers.engines import Engine, HttpEngine, WorkerEngine
from bench.media.peers.gguf_pair import KINDS, write_pair
from bench.media.peers.metadata_folder import write_metadata
from bench.media.peers.shapes import SHAPES

DESCRIPTION: Final = """Images and recordings beside other engines.

images    CPU seconds from a request with an image to its first token, beside llama.cpp and
          mistral.rs; a GGUF pair with random weights. `--layers` 1 (Qwen3-VL: 3) leaves little but
          the cost of encoding
towers    CPU seconds of the tower of the same pair alone, beside llama.cpp's libmtmd
whisper   CPU seconds of the encoder over 30 seconds of audio, and of their transcript, beside
          faster-whisper, whisper.cpp and transformers

All engines are loaded and take turns. Times are the user and system seconds of an engine's
processes, the least of all rounds, because a shared machine disturbs them least.
"""
OURS: Final = "penstock"
SETTINGS: Final = ("shape", "text", "tower", "layers", "size", "threads", "rounds")
"""The options that belong to a result."""
WORKERS: Final = Path(__file__).parents[2] / "workers"
PORT: Final = 18460


def main(arguments: Sequence[str]) -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(
        prog="bench media peers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True)
    _add_images(parts.add_parser("images"))
    _add_towers(parts.add_parser("towers"))
    _add_whisper(parts.add_parser("whisper"))
    options = parser.parse_args(arguments)
    rows = _measured(options)
    if options.out:
        settings = {name: value for name, value in vars(options).items() if name in SETTINGS}
        result = {"machine": facts(), **settings, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a part and print its table."""
    match options.part:
        case "images":
            rows = _images(options)
            print(first_token.table(rows, OURS))
        case "towers":
            rows = _towers(options)
            print(towers.table(rows))
        case _:
            rows = _whisper(options)
            print(whisper.table(rows))
    return rows


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--python", default=sys.executable, help="a Python with penstock")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each engine")
    parser.add_argument("--out", type=Path, help="write the result as JSON")


def _add_pair(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--shape", choices=SHAPES, default="smolvlm-256m")
    parser.add_argument("--text", choices=KINDS, default="q8_0", help="type of the text matrices")
    parser.add_argument("--tower", choices=KINDS, default="f16", help="type of the tower's")
    parser.add_argument("--layers", type=int, default=0, help="of the language model; 0: all")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a GGUF file of SmolLM2")
    parser.add_argument("--size", default="1024x1024", help="width x height of the images")


def _add_images(parser: argparse.ArgumentParser) -> None:
    _add_pair(parser)
    parser.add_argument("--llama-server", type=Path, help="the program of llama.cpp")
    parser.add_argument("--mistralrs", help="a Python with mistralrs")


def _add_towers(parser: argparse.ArgumentParser) -> None:
    _add_pair(parser)
    parser.add_argument(
        "--llama-mtmd-encode", type=Path, required=True, help="bench/lab/llama_mtmd_encode.cc"
    )


def _add_whisper(parser: argparse.ArgumentParser) -> None:
    _add_common(parser)
    parser.add_argument("--folder", type=Path, required=True, help="a folder of transformers")
    parser.add_argument("--ctranslate2", type=Path, help="the same model for faster-whisper")
    parser.add_argument(
        "--audio", type=Path, nargs="+", required=True, help="recordings; 30 s are used"
    )
    parser.add_argument("--kinds", default=",".join(whisper.KINDS), help="comma-separated")
    for name in ("faster-whisper", "whisper.cpp", "transformers"):
        parser.add_argument(f"--{name}", dest=name, help=f"a Python with {name}")


def _whisper(options: argparse.Namespace) -> list[dict[str, Any]]:
    given = vars(options)
    pythons = {OURS: options.python}
    pythons |= {name: given[name] for kind in whisper.KINDS.values() for name in kind
                if given.get(name)}  # fmt: skip
    models = whisper.Models(options.folder, options.ctranslate2, pythons)
    with tempfile.TemporaryDirectory() as scratch:
        return whisper.measure(
            models,
            options.kinds.split(","),
            options.audio,
            options.threads,
            options.rounds,
            Path(scratch),
        )


def _images(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = _pair(options, folder, options.layers)
        metadata = write_metadata(folder / "metadata", SHAPES[options.shape], pair[0])
        with _engines(options, folder, *pair, metadata) as engines:
            return first_token.measure(engines, _size(options), options.rounds)


def _towers(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        pair = _pair(options, Path(name), SHAPES[options.shape].least)
        program = options.llama_mtmd_encode
        return towers.measure(program, pair, _size(options), options.threads, options.rounds)


def _pair(options: argparse.Namespace, folder: Path, layers: int) -> tuple[Path, Path]:
    shape = SHAPES[options.shape]
    if layers and layers < shape.least:
        raise SystemExit(f"--layers: {options.shape} needs {shape.least} or more")
    return write_pair(folder, shape, options.tokenizer, options.text, options.tower, layers)


def _size(options: argparse.Namespace) -> tuple[int, int]:
    width, _, height = options.size.partition("x")
    return int(width), int(height)


@contextmanager
def _engines(
    options: argparse.Namespace, folder: Path, model: Path, mmproj: Path, metadata: Path
) -> Iterator[list[Engine]]:
    threads = options.threads
    with ExitStack() as stack:
        engines: list[Engine] = []

        def add(engine: Engine) -> None:
            stack.callback(engine.stop)
            engines.append(engine)

        command = (
            f"{options.python} -m penstock serve {model} --mmproj {mmproj} --threads {threads}"
            f" --host 127.0.0.1 --port {PORT}"
        )
        add(HttpEngine(OURS, command, PORT, folder / "penstock.log"))
        if options.llama_server:
            command = (
                f"{options.llama_server} -m {model} --mmproj {mmproj} -t {threads} -np 1 -c 8192"
                f" --jinja --no-webui --host 127.0.0.1 --port {PORT + 1}"
            )
            add(HttpEngine("llama.cpp", command, PORT + 1, folder / "llama.log"))
        if options.mistralrs:
            os.environ["RAYON_NUM_THREADS"] = str(threads)
            script = str(WORKERS / "mistralrs_image_worker.py")
            worker = [options.mistralrs, script, str(model), str(mmproj), str(metadata)]
            add(WorkerEngine("mistral.rs", worker, folder / "mistralrs.log"))
        yield engines
