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
    from penstock.quant.importance import ImportanceMatrix
    from penstock.quantizing.quantize_model import Job, Work
    from penstock.quantizing.report import Report

_CHUNKS = 8
_CALIBRATION_CHUNKS = 32

Output = Annotated[
    Path, typer.Argument(metavar="OUT", help="The file to write, which ends in .gguf, or a folder.")
]
TypeName = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="The mixture of types: Q4_K_M, Q5_K_M, Q6_K, Q8_0, ...; int4 or int8 for a folder.",
    ),
]
TensorTypes = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        metavar="PATTERN=TYPE",
        help="The type of tensors whose names the pattern matches; may be repeated, the first"
        " match decides.",
    ),
]
ImportanceFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(metavar="FILE", help="An importance matrix, as llama-imatrix writes it."),
]
CalibrationText = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        metavar="FILE", help="Compute the importance matrix over this text, with this engine."
    ),
]
SavedImportance = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(metavar="FILE", help="Keep the importance matrix that was computed."),
]
MeasuredText = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(metavar="FILE", help="A text over which the loss is measured: KL and perplexity."),
]


def quantize(
    model: Annotated[str, typer.Argument(metavar="IN", help=MODEL_HELP)],
    output: Output,
    type_name: TypeName = "Q4_K_M",
    tensor_type: TensorTypes = None,
    imatrix: ImportanceFile = None,
    calibration_text: CalibrationText = None,
    calibration_chunks: Annotated[
        int, typer.Option(min=1, help="The chunks of 512 tokens of the calibration text.")
    ] = _CALIBRATION_CHUNKS,
    save_imatrix: SavedImportance = None,
    text: MeasuredText = None,
    chunks: Annotated[
        int, typer.Option(min=1, help="The chunks of 512 tokens that are measured.")
    ] = _CHUNKS,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write a quantized model, and report its size and its loss.

    An interrupted run continues if it is started again.
    """
    from penstock.quant.importance_file import read_importance
    from penstock.quantizing.quantize_model import prepare

    if imatrix is not None and calibration_text is not None:
        raise SettingsError("--imatrix and --calibration-text exclude each other")
    if save_imatrix is not None:
        _check_place(save_imatrix, calibration_text)
    words = None if text is None else _read_text(text)
    calibration = None if calibration_text is None else _read_text(calibration_text)
    job = _job(model, output, type_name, tensor_type or [])
    work = prepare(job)
    importance = None if imatrix is None else read_importance(imatrix)
    if calibration_text is not None and calibration is not None:
        importance = _computed(job, calibration, calibration_chunks, calibration_text.name)
        if save_imatrix is not None:
            _save_importance(importance, save_imatrix)
    report = _written(work, output, importance)
    if words is not None:
        report = _measured(report, job, words, chunks)
    if as_json:
        print_json({"path": str(output)} | asdict(report))
    else:
        _print(output, report)


def _job(model: str, output: Path, type_name: str, rules: list[str]) -> Job:
    """Find the model. Its download comes after all checks that need no files."""
    from penstock.base.resources import available_cores
    from penstock.cli.pull import fetch_model
    from penstock.quantizing.partial_file import refuse_to_overwrite
    from penstock.quantizing.quantize_model import Job, rule_types
    from penstock.quantizing.type_plan import parse_rule

    parsed = tuple(parse_rule(rule, rule_types(output)) for rule in rules)
    refuse_to_overwrite(output)
    return Job(fetch_model(model), output, type_name, parsed, threads=available_cores())


def _computed(job: Job, text: str, chunks: int, name: str) -> ImportanceMatrix:
    from penstock.cli.progress_bars import ProgressBars
    from penstock.quantizing.calibration import importance_over

    with ProgressBars() as bars:
        return importance_over(
            job.files, text, chunks, name, lambda done, total: bars.update(name, done, total)
        )


def _check_place(path: Path, calibration_text: Path | None) -> None:
    if calibration_text is None:
        raise SettingsError("--save-imatrix needs --calibration-text")
    if not path.absolute().parent.is_dir():
        raise SettingsError(f"{path}: the folder does not exist")


def _save_importance(importance: ImportanceMatrix, path: Path) -> None:
    try:
        importance.write(path)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None


def _written(work: Work, output: Path, importance: ImportanceMatrix | None) -> Report:
    from penstock.cli.progress_bars import ProgressBars

    with ProgressBars() as bars:
        return work(importance, lambda done, total: bars.update(output.name, done, total))


def _measured(report: Report, job: Job, words: str, chunks: int) -> Report:
    from penstock.cli.progress_bars import ProgressBars
    from penstock.quantizing.quantize_model import measured

    with ProgressBars() as bars:
        return measured(
            report, job, words, chunks, lambda done, total: bars.update("text", done, total)
        )


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
    """Read a text. Raises SettingsError for a file that cannot be read, is empty or is not
    UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise SettingsError(f"{path}: the text is empty")
    return text
