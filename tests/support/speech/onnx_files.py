"""Writes small ONNX files with the interfaces of Kokoro and Piper, without the package `onnx`.

Both models turn each token into SAMPLES_PER_TOKEN samples of a sine wave: its frequency is the
token, its loudness the mean of the style (Kokoro) or of the scales (Piper).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SAMPLES_PER_TOKEN = 240
IR_VERSION, OPSET = 8, 13
FLOAT, INT64 = 1, 7
INT_ATTRIBUTE, INTS_ATTRIBUTE = 2, 7
Field = tuple[int, "int | bytes | str"]
PIPER_SYMBOLS = "_^$ !',.:;?abcdefhijklmnoprstuvwzæðŋɐɑɔəɚɛɜɡɪɫɹɾʃʊʌʒˈˌːθᵻ"


def message(*fields: Field) -> bytes:
    """Return a protobuf message of these (field number, value)."""
    made = b""
    for number, value in fields:
        if isinstance(value, int):
            made += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            made += varint(number << 3 | 2) + varint(len(data)) + data
    return made


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    made = b""
    while number > 127:
        made += bytes([number & 127 | 128])
        number >>= 7
    return made + bytes([number])


def node(kind: str, inputs: Sequence[str], output: str, **attributes: int | list[int]) -> bytes:
    fields: list[Field] = [(1, name) for name in inputs]
    fields += [(2, output), (4, kind)]
    for name, value in attributes.items():
        if isinstance(value, int):
            fields.append((5, message((1, name), (3, value), (20, INT_ATTRIBUTE))))
        else:
            numbers: list[Field] = [(8, number) for number in value]
            fields.append((5, message((1, name), *numbers, (20, INTS_ATTRIBUTE))))
    return message(*fields)


def tensor(name: str, values: np.ndarray) -> bytes:
    dims: list[Field] = [(1, size) for size in values.shape]
    kind = FLOAT if values.dtype == np.float32 else INT64
    return message(*dims, (2, kind), (8, name), (9, values.tobytes()))


def value_info(name: str, kind: int, shape: Sequence[int | str]) -> bytes:
    dims: list[Field] = [
        (1, message((1, size) if isinstance(size, int) else (2, size))) for size in shape
    ]
    return message((1, name), (2, message((1, message((1, kind), (2, message(*dims)))))))


def tones(tokens: str, loudness: str, output: str, shape: list[int]) -> list[Field]:
    """Return the nodes and constants of a graph that computes the samples."""
    ramp = (0.01 * np.arange(SAMPLES_PER_TOKEN)).astype(np.float32).reshape(1, 1, -1)
    nodes = (
        node("Cast", [tokens], "numbers", to=FLOAT),
        node("Unsqueeze", ["numbers", "last"], "column"),
        node("Mul", ["column", "ramp"], "phases"),
        node("Sin", ["phases"], "waves"),
        node("ReduceMean", [loudness], "mean", keepdims=0),
        node("Mul", ["waves", "mean"], "scaled"),
        node("Reshape", ["scaled", "shape"], output),
    )
    constants = (
        tensor("ramp", ramp),
        tensor("last", np.array([2])),
        tensor("shape", np.array(shape)),
    )
    return [*((1, one) for one in nodes), *((5, one) for one in constants)]


def write_model(path: Path, inputs: Sequence[bytes], output: bytes, graph: list[Field]) -> None:
    ends: list[Field] = [*((11, one) for one in inputs), (12, output)]
    whole = message(*graph, (2, "tones"), *ends)
    path.write_bytes(message((1, IR_VERSION), (7, whole), (8, message((1, ""), (2, OPSET)))))


def write_kokoro(folder: Path, voices: Sequence[str] = ("af_heart", "am_echo", "bf_emma")) -> Path:
    """Write a Kokoro folder. The style of voice k is k + 1 tenths everywhere."""
    inputs = (
        value_info("input_ids", INT64, (1, "n")),
        value_info("style", FLOAT, (1, 256)),
        value_info("speed", FLOAT, (1,)),
    )
    output = value_info("waveform", FLOAT, (1, "m"))
    graph = tones("input_ids", "style", "waveform", [1, -1])
    write_model(folder / "model.onnx", inputs, output, graph)
    (folder / "voices").mkdir()
    for number, voice in enumerate(voices):
        style = np.full((510, 1, 256), (number + 1) / 10, "<f4")
        style.tofile(folder / "voices" / f"{voice}.bin")
    return folder


def write_piper(folder: Path, name: str = "en_US-tone-low", speakers: int = 1) -> Path:
    """Write a Piper voice and return its ONNX file."""
    inputs = [
        value_info("input", INT64, (1, "n")),
        value_info("input_lengths", INT64, (1,)),
        value_info("scales", FLOAT, (3,)),
    ]
    if speakers > 1:
        inputs.append(value_info("sid", INT64, (1,)))
    output = value_info("output", FLOAT, (1, 1, 1, "m"))
    path = folder / f"{name}.onnx"
    write_model(path, inputs, output, tones("input", "scales", "output", [1, 1, 1, -1]))
    config = {
        "audio": {"sample_rate": 16000},
        "espeak": {"voice": "en-us"},
        "inference": {"noise_scale": 0.1, "length_scale": 0.2, "noise_w": 0.3},
        "phoneme_id_map": {symbol: [number] for number, symbol in enumerate(PIPER_SYMBOLS)},
        "num_speakers": speakers,
        "speaker_id_map": {f"p{number}": number for number in range(speakers)}
        if speakers > 1
        else {},
    }
    path.with_name(f"{path.name}.json").write_text(json.dumps(config))
    return path
