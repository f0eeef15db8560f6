"""`penstock tune`: measures which types of weights fit and how fast they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from penstock.base.errors import ModelError
from penstock.cli.model_names import model_names
from penstock.cli.output import JSON_OPTION, print_json, print_table, size_text
from penstock.cli.settings_parameters import DEFAULT_MODEL_HELP
from penstock.config import EngineSettings, read_environment

if TYPE_CHECKING:
    from penstock.tune.types import Candidate, RecommendedSettings, TuneModelResponse

NOT_MEASURED = "-"


def tune(
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help=DEFAULT_MODEL_HELP, autocompletion=model_names),
    ] = None,
    profile: Annotated[
        Literal["quality", "balanced", "fast"],
        typer.Option(
            help="quality: the smallest loss. balanced: the fastest type that is at least good."
            " fast: the fastest that is at least acceptable."
        ),
    ] = "balanced",
    max_model_len: Annotated[
        int,
        typer.Option(
            "--max-model-len", "--max-seq-len", min=1, metavar="N", help="Tokens of a sequence."
        ),
    ] = 4096,
    batch: Annotated[
        int,
        typer.Option(
            "--max-batch-size",
            min=1,
            metavar="N",
            help="Sequences of this length for which the KV cache has room.",
        ),
    ] = 1,
    quantization: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--quantization",
            "-q",
            "--isq",
            metavar="TYPE",
            help="Tune this type only; none: the weights as stored.",
            show_default="all types",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto or float32, as for serve.")] = "auto",
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Tune for the CPU even if there is a GPU.")
    ] = False,
    threads: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, metavar="N", help="Compute threads.", show_default="all cores"),
    ] = None,
    images: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--max-num-images", min=1, metavar="N", help="Images in a prompt."),
    ] = None,
    image_length: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--max-image-length", min=1, metavar="N", help="Longest side of an image in pixels."
        ),
    ] = None,
    revision: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Branch, tag or commit on the Hugging Face hub."),
    ] = None,
    token_source: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Token for the hub: cache (HF_TOKEN or a login), none, literal:TOKEN, env:NAME"
            " or path:FILE.",
        ),
    ] = "cache",
    emit_config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Write the recommended settings for `serve --config`."),
    ] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Measure the types of weights of a model and recommend settings."""
    from penstock.tune.job import run_job
    from penstock.tune.outcome import TuneJob
    from penstock.tune.types import TuneModelRequest

    name = model or EngineSettings().model
    request = TuneModelRequest(
        model_id=name,
        profile=profile,
        cpu=cpu,
        dtype=dtype,
        hf_revision=revision,
        max_batch_size=batch,
        max_image_length=image_length,
        max_num_images=images,
        max_seq_len=max_model_len,
        requested_isq=quantization,
        token_source=token_source,
    )
    job = TuneJob(request, EngineSettings(model=name, threads=threads), name)
    found = run_job(job, read_environment())
    if emit_config is not None:
        _write_config(found, emit_config)
    if as_json:
        print_json(found)
        return
    _print(found)
    if emit_config is not None:
        typer.echo(f"  penstock serve --config {emit_config}")


def _print(found: TuneModelResponse) -> None:
    unit = "GPU memory" if found.backend == "cuda" else "memory"
    typer.echo(
        f"{found.model_id} on the {'GPU' if found.backend == 'cuda' else 'CPU'}, profile"
        f" {found.profile}: context of {found.max_seq_len:,} tokens"
        f"{'' if found.max_batch_size == 1 else f' x {found.max_batch_size}'},"
        f" {size_text(found.available_bytes)} of {unit}\n"
    )
    columns: tuple[str, ...] = (
        "",
        "Type",
        "Weights",
        "Memory",
        "Context",
        "Loss",
        "Prefill",
        "Decode",
        "At the end",
    )
    rows = [_row(one) for one in found.candidates]
    if found.max_batch_size > 1:
        together = max(
            (one.speed.batch_sequences for one in found.candidates if one.speed), default=0
        )
        columns = (*columns, f"{together} sequences")
        rows = [
            (*row, _rate(one, "batch_decode_tokens_per_s"))
            for row, one in zip(rows, found.candidates, strict=True)
        ]
    print_table(columns, rows, numbers=[name for name in columns if name not in ("Type", "Loss")])
    typer.echo(
        "\nPrefill, decode: estimated tokens per second of one sequence; at the end: decode at the"
        " end of the context."
    )
    for warning in found.warnings:
        typer.echo(f"warning: {warning}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    if found.recommended_command is not None:
        typer.echo(f"\n  {found.recommended_command}")


def _row(one: Candidate) -> tuple[str, ...]:
    share = f"{100 * one.vram_usage_percent:.0f} %"
    fits = "" if one.fit_status == "fits" else ", too large"
    more = "" if one.context_is_model_max or not one.max_context_tokens else " at most"
    return (
        "*" if one.recommended else "",
        one.isq_name if one.isq is not None else f"as stored ({one.isq_name})",
        size_text(one.estimated_size_bytes),
        f"{size_text(one.memory.total_bytes)} ({share}{fits})",
        f"{one.max_context_tokens:,}{more}" if one.max_context_tokens else "none",
        one.quality,
        _rate(one, "prefill_tokens_per_s"),
        _rate(one, "decode_tokens_per_s"),
        _rate(one, "decode_at_context_tokens_per_s"),
    )


def _rate(one: Candidate, field: str) -> str:
    if one.speed is None:
        return NOT_MEASURED
    rate: float = getattr(one.speed, field)
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _write_config(found: TuneModelResponse, file: Path) -> None:
    """Write the recommended settings as a settings file. Raises ModelError if there are none."""
    if found.recommended_settings is None:
        raise ModelError(f"{found.model_id} does not fit, so {file} is not written")
    file.write_text(config_text(found.recommended_settings), encoding="utf-8")


def config_text(settings: RecommendedSettings) -> str:
    """Return settings as a TOML file for `--config`."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(settings)
    model = values.pop("model")
    lines = [f"model = {_quoted(model)}", "", "[engine]"]
    lines += [
        f"{key} = {_quoted(value) if isinstance(value, str) else value}"
        for key, value in values.items()
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a basic string of TOML, whose escapes are those of JSON."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
