"""`penstock bench`: measures the engine alone, without HTTP and tokenization."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer

from penstock.base.errors import ModelError
from penstock.cli.output import JSON_OPTION, print_json
from penstock.cli.settings_parameters import CommandSettings, with_settings

PANEL: Final = "Benchmark"


def _option(*flags: str, help: str, **details: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=PANEL, **details)


def _count(help: str, *flags: str, least: int = 1) -> Any:
    return _option(*flags, help=help, min=least, metavar="N")


@with_settings()
def bench(
    parsed: CommandSettings,
    prompt_len: Annotated[
        int, _count("Prompt length in tokens.", "--input-len", "--prompt-len")
    ] = 512,
    gen_len: Annotated[
        int, _count("Generated tokens per sequence.", "--output-len", "--gen-len", least=2)
    ] = 128,
    streams: Annotated[
        str,
        _option(
            "--batch-size",
            "--streams",
            metavar="N,N...",
            help="Concurrent sequences; several numbers are measured one after the other.",
        ),
    ] = "1",
    iterations: Annotated[
        int, _count("Measured runs per number of sequences.", "--num-iters", "--iterations")
    ] = 3,
    warmup: Annotated[
        int, _count("Unmeasured runs before.", "--num-iters-warmup", "--warmup", least=0)
    ] = 1,
    adapter: Annotated[
        Optional[str],  # noqa: UP045
        _option("--adapter", help="Alias of the LoRA adapter to use; --lora loads it."),
    ] = None,
    report: Annotated[
        Optional[list[Path]],  # noqa: UP045
        _option(
            "--report",
            metavar="FILE",
            help="Write a report: FILE.html and FILE.png with plots, FILE.json to compare; may be"
            " repeated.",
        ),
    ] = None,
    compare: Annotated[
        Optional[tuple[Path, Path]],  # noqa: UP045
        _option(
            "--compare",
            metavar="FILE.json FILE.json",
            help="Measure nothing; compare two reports and print the ratios of their figures.",
        ),
    ] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Measure the speed of a model on this machine."""
    from penstock.cli.bench_plots import check_report_file, write_report
    from penstock.cli.bench_report import print_report

    if compare is not None:
        _print_comparison(compare, as_json)
        return
    for path in report or ():
        check_report_file(path)
    lengths = (prompt_len, gen_len)
    measured = _measure(parsed, lengths, stream_counts(streams), (warmup, iterations), adapter)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(measured))
    else:
        print_report(measured)
    for path in report or ():
        write_report(measured, path)
        typer.echo(f"wrote {path}", err=True)


def stream_counts(text: str) -> tuple[int, ...]:
    """Parse `1,2,4` -> (1, 2, 4). Raises BadParameter."""
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise typer.BadParameter(f"--streams must have numbers from 1, such as 1,2,4,8: {text!r}")
    return counts


def _print_comparison(paths: tuple[Path, Path], as_json: bool) -> None:
    from penstock.cli.bench_comparison import compare, print_comparison

    if as_json:
        print_json(compare(paths))
    else:
        print_comparison(paths)


def _measure(
    parsed: CommandSettings,
    lengths: tuple[int, int],
    streams: tuple[int, ...],
    runs: tuple[int, int],
    adapter: str | None,
) -> Any:
    """Load the model and return the report of its measurement. Raises ModelError.

    `lengths`: tokens of each prompt and each answer. `runs`: unmeasured and measured ones.
    """
    from penstock.cli.bench_report import new_report, this_machine
    from penstock.cli.engine_benchmark import measure
    from penstock.cli.local_model import local_model

    settings = parsed.one_engine()
    with local_model(settings) as (loop, model):
        info = model.engine.info
        if sum(lengths) > info.max_model_len:
            raise ModelError(
                f"{lengths[0]} + {lengths[1]} tokens exceed the context of {info.max_model_len};"
                " reduce --input-len or --output-len, or raise --max-model-len"
            )
        revision = "" if adapter is None else model.adapters.resolve(adapter)
        warmup, iterations = runs
        measured = []
        for count in streams:
            speeds = [
                loop.run_until_complete(measure(model.engine, *lengths, count, revision))
                for _ in range(warmup + iterations)
            ]
            measured.append((count, speeds[warmup:]))
        names = (model.name, info.fingerprint)
        return new_report(names, this_machine(settings), lengths, measured)
