"""The report of `penstock bench`: its JSON and its tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock import __version__
from penstock.cli.engine_benchmark import Speed
from penstock.cli.output import print_table, size_text
from penstock.config import EngineSettings, SettingsError, read_environment

FORMAT: Final = 1
PERCENTILES: Final = (50, 90, 95, 99)


class Spread(msgspec.Struct, frozen=True):
    """A figure of all iterations."""

    median: float
    min: float
    max: float


class Percentiles(msgspec.Struct, frozen=True):
    """Latencies, in seconds."""

    p50: float
    p90: float
    p95: float
    p99: float


class Level(msgspec.Struct, frozen=True):
    """The figures for one number of concurrent sequences.

    `prefill_rate`, `decode_rate`: tokens per second, over all sequences.
    `first_token_s`: times to the first token. `token_s`: times between tokens.
    """

    streams: int
    prefill_rate: Spread
    decode_rate: Spread
    first_token_s: Percentiles
    token_s: Percentiles


class Machine(msgspec.Struct, frozen=True):
    """The machine of a report. `device`: what computes: "CPU", or the GPUs. `cores`: the cores that
    the process may use."""

    device: str
    cpu: str
    cores: int
    memory_bytes: int
    os: str
    kernel: str


class Report(msgspec.Struct, frozen=True):
    """The result of `penstock bench`. `created`: Unix time."""

    created: int
    version: str
    machine: Machine
    model: str
    fingerprint: str
    prompt_len: int
    gen_len: int
    iterations: int
    levels: tuple[Level, ...]
    format: int = FORMAT


def new_report(
    model: tuple[str, str],
    machine: Machine,
    lengths: tuple[int, int],
    measured: Sequence[tuple[int, list[Speed]]],
) -> Report:
    """Return the report of measurements.

    `model`: its name and its fingerprint. `lengths`: tokens of each prompt and each answer.
    `measured`: (streams, the speed of each iteration).
    """
    return Report(
        created=int(time.time()),
        version=__version__,
        machine=machine,
        model=model[0],
        fingerprint=model[1],
        prompt_len=lengths[0],
        gen_len=lengths[1],
        iterations=len(measured[0][1]),
        levels=tuple(level(streams, speeds) for streams, speeds in measured),
    )


def level(streams: int, speeds: Sequence[Speed]) -> Level:
    """Return the figures of the iterations with `streams` sequences."""
    return Level(
        streams=streams,
        prefill_rate=_spread([speed.prompt_rate for speed in speeds]),
        decode_rate=_spread([speed.decode_rate for speed in speeds]),
        first_token_s=percentiles([s for speed in speeds for s in speed.first_tokens_s]),
        token_s=percentiles([s for speed in speeds for s in speed.token_gaps_s]),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def percentiles(values: Sequence[float]) -> Percentiles:
    """Return percentiles of `values`, each of which is one of them (the nearest rank)."""
    ordered = sorted(values)
    ranks = (-(-len(ordered) * share // 100) for share in PERCENTILES)
    return Percentiles(*(ordered[max(rank, 1) - 1] for rank in ranks))


def this_machine(settings: EngineSettings) -> Machine:
    """Describe this machine, and the device that an engine with `settings` uses."""
    from penstock.base.resources import available_cores
    from penstock.system.facts import system_info

    info = system_info(read_environment())
    return Machine(
        _device(settings),
        info.cpu.brand,
        available_cores(),
        info.memory.total_bytes,
        info.os,
        info.kernel,
    )


def _device(settings: EngineSettings) -> str:
    """Return "CPU", or the number and the names of the GPUs, which are mostly of one kind."""
    from penstock.runtime.device_choice import choose_device
    from penstock.system.gpus import gpu_names

    device = choose_device(settings)
    if device == "cpu":
        return "CPU"
    names = " or ".join(dict.fromkeys(gpu_names()))
    return f"{settings.tensor_parallel_size} x {names or device}"


def read_report(path: Path) -> Report:
    """Return the report in a JSON file. Raises SettingsError, and OSError."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.MsgspecError as error:
        raise SettingsError(
            f"{path}: no report: {error}; `penstock bench --report {path.stem}.json` writes one"
        ) from None
    if report.format != FORMAT:
        raise SettingsError(
            f"{path}: format {report.format} is unknown; this version reads {FORMAT}"
        )
    return report


def machine_text(machine: Machine) -> str:
    """Return a line that describes a machine."""
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    gpus = "" if machine.device == "CPU" else f"{machine.device}, "
    return f"{gpus}{machine.cpu}, {cores}, {size_text(machine.memory_bytes)}, {machine.os}"


def setting_text(report: Report) -> str:
    """Return a line that describes a measurement."""
    runs = f"{report.iterations} iteration{'' if report.iterations == 1 else 's'}"
    return f"{report.prompt_len} tokens in, {report.gen_len} out, {runs}"


def print_report(report: Report) -> None:
    """Print the tables of a report."""
    print(f"{report.model}: {setting_text(report)}")
    print(f"{machine_text(report.machine)}, Penstock {report.version}\n")
    columns = ("Streams", "Figure", "median", "min", "max")
    rows = [row for level in report.levels for row in _rate_rows(level)]
    print_table(columns, rows, numbers=(columns[0], *columns[2:]))
    print()
    latencies = ("Streams", "Latency", "p50", "p90", "p95", "p99")
    rows = [row for level in report.levels for row in _latency_rows(level)]
    print_table(latencies, rows, numbers=(latencies[0], *latencies[2:]))


def _rate_rows(level: Level) -> list[tuple[str, ...]]:
    figures = (("prefill, tok/s", level.prefill_rate), ("decode, tok/s", level.decode_rate))
    return [
        (str(level.streams), name, *(f"{x:,.1f}" for x in (of.median, of.min, of.max)))
        for name, of in figures
    ]


def _latency_rows(level: Level) -> list[tuple[str, ...]]:
    figures = (("first token, ms", level.first_token_s), ("next token, ms", level.token_s))
    return [
        (str(level.streams), name, *(f"{1000 * s:,.1f}" for s in (of.p50, of.p90, of.p95, of.p99)))
        for name, of in figures
    ]
