"""Measure the loss of each type of weights, beside llama.cpp's encoder in the same file.

    python -m bench encoders MODEL TEXT --peer VENV --types Q4_0 Q4_K_M --out FOLDER

Each type is written by `penstock quantize`. The peer's file is the same file with every encoded
tensor encoded again by `ggml_quantize_chunk` of llama.cpp (package `xllamacpp` in VENV), so that
sizes and types of tensors are equal. Both are computed by Penstock. The base is MODEL in float32.
The difference of the two mean KL divergences has its standard error over chunks beside it: a
difference below twice that is none.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from bench.harness.machine_facts import facts
from penstock.base.resources import available_cores
from penstock.models.hub.sources import files_at
from penstock.quant.encode.type_names import FLOATS
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.importance_file import importance_rows, read_importance
from penstock.quantizing.quality import CHUNK, Scorer, compare, text_tokens
from penstock.quantizing.quantize_model import Job, open_source, quantize_model

TYPES_MEASURED: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"),
    *("IQ4_NL", "IQ4_XS"),
)


class PeerEncoder:
    """llama.cpp's `ggml_quantize_chunk`, from the library inside the package xllamacpp."""

    def __init__(self, environment: Path) -> None:
        """Load the library. Raises FileNotFoundError if the environment has none."""
        found = sorted(environment.glob("lib/python*/site-packages/xllamacpp/xllamacpp*.so"))
        if not found:
            raise FileNotFoundError(f"{environment}: has no xllamacpp")
        self._encode = ctypes.CDLL(str(found[0])).ggml_quantize_chunk
        self._encode.restype = ctypes.c_size_t
        rows = [ctypes.c_int64] * 3
        self._encode.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *rows]
        self._encode.argtypes.append(ctypes.c_void_p)

    def __call__(
        self,
        type_name: str,
        weights: npt.NDArray[np.float32],
        importance: npt.NDArray[np.float32] | None,
    ) -> npt.NDArray[np.uint8]:
        """Encode `weights` [N, C]. Return the bytes."""
        weights = np.ascontiguousarray(weights, np.float32)
        kind = TYPES[type_name]
        out = np.empty(weights.size // kind.block * kind.size_bytes, np.uint8)
        if importance is not None:
            importance = np.ascontiguousarray(importance, np.float32)
        written = self._encode(
            GGMLQuantizationType[type_name].value,
            weights.ctypes.data,
            out.ctypes.data,
            0,
            *weights.shape,
            None if importance is None else importance.ctypes.data,
        )
        assert written == out.nbytes
        return out


def write_peer(
    ours: Path, peer: Path, source: Path, encode: PeerEncoder, importance: ImportanceMatrix | None
) -> None:
    """Copy `ours` to `peer`, with every encoded tensor encoded again from `source`."""
    shutil.copyfile(ours, peer)
    weights, written = open_source(files_at(source, source.stem)), GgufFile(ours)
    with peer.open("r+b") as file:
        for name, info in written.tensors.items():
            before = weights.tensors[name].type_name
            if info.type_name in FLOATS or info.type_name == before:
                continue
            count = info.shape[0] if len(info.shape) == 3 else 1
            own = None
            if importance is not None:
                own = importance_rows(importance, name, count, info.shape[-1])
            file.seek(info.offset)
            for index, rows in weights.rows(name):
                columns = None if own is None else own[index]
                file.write(encode(info.type_name, rows, columns).tobytes())


class Base:
    """The log probabilities of MODEL in float32 over the chunks of the text, computed once."""

    def __init__(self, model: Path, tokens: npt.NDArray[np.int32], threads: int) -> None:
        scorer = Scorer(model, "f32", "f32", threads)
        self._threads = threads
        self._chunks = [tokens[at : at + CHUNK] for at in range(0, len(tokens), CHUNK)]
        self._logs = {
            chunk.tobytes(): scorer.log_probabilities(chunk).astype(np.float32)
            for chunk in self._chunks
        }

    def log_probabilities(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return those of a chunk of the text."""
        return self._logs[tokens.tobytes()].astype(np.float64)

    def loss(self, path: Path) -> tuple[npt.NDArray[np.float64], float]:
        """Return the mean KL divergence of each chunk, and the perplexity."""
        scorer = Scorer(path, "auto", "f16", self._threads)
        each = [compare(self, scorer, chunk) for chunk in self._chunks]
        perplexity = np.exp(np.mean([np.log(one.perplexity) for one in each]))
        return np.array([one.mean_kl for one in each]), float(perplexity)


@dataclass(frozen=True)
class Row:
    """One type: its size, the losses of both files, and `error`, the standard error of the
    difference of the two KL divergences."""

    type_name: str
    size_bytes: int
    bits: float
    kl: float
    peer_kl: float
    error: float
    perplexity: float
    peer_perplexity: float

    def __str__(self) -> str:
        return (
            f"| {self.type_name} | {self.size_bytes:,} | {self.bits:.2f} | {self.kl:.5f} |"
            f" {self.peer_kl:.5f} | {self.kl - self.peer_kl:+.5f} ± {self.error:.5f} |"
            f" {self.perplexity:.3f} | {self.peer_perplexity:.3f} |"
        )


HEADER: Final = (
    "| Type | Bytes | Bits | KL | llama.cpp's KL | difference | perplexity | llama.cpp's |\n"
    "|---|---|---|---|---|---|---|---|"
)


def measure(
    type_name: str,
    source: Path,
    base: Base,
    encode: PeerEncoder,
    importance: ImportanceMatrix | None,
    folder: Path,
) -> Row:
    """Write both files of one type, and measure them."""
    ours, peer = folder / f"{type_name}.gguf", folder / f"{type_name}-peer.gguf"
    for path in (ours, peer):
        path.unlink(missing_ok=True)
    files = files_at(source, source.stem)
    job = Job(files, ours, type_name, (), importance, available_cores())
    report = quantize_model(job, lambda done, total: None)
    write_peer(ours, peer, source, encode, importance)
    kl, perplexity = base.loss(ours)
    peer_kl, peer_perplexity = base.loss(peer)
    error = float((kl - peer_kl).std(ddof=1) / len(kl) ** 0.5) if len(kl) > 1 else float("nan")
    return Row(
        type_name,
        report.size_bytes,
        report.bits_per_weight,
        float(kl.mean()),
        float(peer_kl.mean()),
        error,
        perplexity,
        peer_perplexity,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench encoders", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--peer", type=Path, required=True, help="environment with xllamacpp")
    parser.add_argument("--types", nargs="+", default=TYPES_MEASURED)
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    text = arguments.text.read_text(encoding="utf-8", errors="replace")
    tokens = text_tokens(arguments.model, text, arguments.chunks)
    base = Base(arguments.model, tokens, available_cores())
    importance = None if arguments.imatrix is None else read_importance(arguments.imatrix)
    encode = PeerEncoder(arguments.peer)
    print(HEADER, flush=True)
    rows = []
    for type_name in arguments.types:
        row = measure(type_name, arguments.model, base, encode, importance, arguments.out)
        print(row, flush=True)
        rows.append(asdict(row))
    result = {"machine": facts(), "model": arguments.model.name, "rows": rows}
    (arguments.out / "encoders.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
