"""`penstock quantize`: write a quantized model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from penstock.cli.output import JSON_OPTION, print_json, print_table, size_text
from penstock.cli.settings_parameters import MODEL_HELP
from penstock.config import SettingsError

if TYPE_CHECKING:
    from penstock.quantizing.report import Report

_CHUNKS = 8
_CALIBRATION_CHUNKS = 32


def quantize(
    model: Annotated[str, typer.Argument(metavar="IN", help=MODEL_HELP)],
    output: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="The file to write, which ends in .gguf, or a folder."),
    ],
    type_name: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="The mixture of types: Q4_K_M, Q5_K_M, Q6_K, Q8_0, ...; int4 or int8 for a"
            " folder.",
        ),
    ] = "Q4_K_M",
    tensor_type: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="PATTERN=TYPE",
            help="The type of tensors whose names the pattern matches; may be repeated, the first"
            " match decides.",
        ),
    ] = None,
    imatrix: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="An importance matrix, as llama-imatrix writes it."),
    ] = None,
    calibration_text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE", help="Compute the importance matrix over this text, with this engine."
        ),
    ] = None,
    calibration_chunks: Annotated[
        int, typer.Option(min=1, help="The chunks of 512 tokens of the calibration text.")
    ] = _CALIBRATION_CHUNKS,
    save_imatrix: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Keep the importance matrix that was computed."),
    ] = None,
    text: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE", help="A text over which the loss is measured: KL and perplexity."
        ),
    ] = None,
    chunks: Annotated[
        int, typer.Option(min=1, help="The chunks of 512 tokens that are measured.")
    ] = _CHUNKS,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write a quantized model, and report its size and its loss.

    An interrupted run continues if it is started again.
    """
    from penstock.base.resources import available_cores
    from penstock.cli.progress_bars import ProgressBars
    from penstock.cli.pull import fetch_model
    from penstock.quant.importance_file import read_importance
    from penstock.quantizing.calibration import importance_over
    from penstock.quantizing.partial_file import refuse_to_overwrite
    from penstock.quantizing.quantize_model import Job, measured, quantize_model
    from penstock.quantizing.type_plan import parse_rule

    rules = tuple(map(parse_rule, tensor_type or ()))
    words = None if text is None else _read_text(text)
    refuse_to_overwrite(output)
    if imatrix is not None and calibration_text is not None:
        raise SettingsError("--imatrix and --calibration-text exclude each other")
    calibration = None if calibration_text is None else _read_text(calibration_text)
    files = fetch_model(model)
    importance = None if imatrix is None else read_importance(imatrix)
    if calibration_text is not None and calibration is not None:
        with ProgressBars() as bars:
            importance = importance_over(
                files,
                calibration,
                calibration_chunks,
                calibration_text.name,
                lambda done, total: bars.update(calibration_text.name, done, total),
            )
        if save_imatrix is not None:
            importance.write(save_imatrix)
    job = Job(files, output, type_name, rules, importance, available_cores())
    with ProgressBars() as bars:
        report = quantize_model(job, lambda done, total: bars.update(output.name, done, total))
    if words is not None:
        with ProgressBars() as bars:
            report = measured(
                report, job, words, chunks, lambda done, total: bars.update("text", done, total)
            )
    if as_json:
        print_json({"path": str(output)} | asdict(report))
    else:
        _print(output, report)


def _print(output: Path, report: Report) -> None:
    typer.echo(
        f"{output}: {size_text(report.size_bytes)}, {report.bits_per_weight:.2f} bits per weight"
        f" (from {size_text(report.source_bytes)}, {report.source_bits_per_weight:.2f})"
    )
    rows = [(name, str(count), size_text(size)) for name, (count, size) in report.types.items()]
    print_table(("Type", "Tensors", "Size"), rows, numbers=("Tensors", "Size"))
    for note in report.notes:
        typer.echo(note)
    if report.quality is not None:
        quality = report.quality
        typer.echo(
            f"KL {quality.mean_kl:.4f} nats per token (median {quality.median_kl:.4f}, 99% below"
            f" {quality.p99_kl:.3f}), same best token {quality.same_best:.1%}, perplexity"
            f" {quality.perplexity:.3f} (from {quality.perplexity_base:.3f}), over"
            f" {quality.tokens} tokens"
        )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
