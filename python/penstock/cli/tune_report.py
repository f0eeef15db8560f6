"""Prints the result of `penstock tune` for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from penstock.cli.output import print_table, size_text

if TYPE_CHECKING:
    from penstock.tune.types import Candidate, TuneModelResponse

COLUMNS: Final = (
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
LEFT: Final = ("Type", "Loss")
NOT_MEASURED: Final = "-"


def print_report(found: TuneModelResponse) -> None:
    """Print the candidates as a table, the remarks, and the recommended command."""
    _print_title(found)
    _print_candidates(found)
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


def _print_title(found: TuneModelResponse) -> None:
    device, memory = ("GPU", "GPU memory") if found.backend == "cuda" else ("CPU", "memory")
    batch = "" if found.max_batch_size == 1 else f" x {found.max_batch_size}"
    typer.echo(
        f"{found.model_id} on the {device}, profile {found.profile}: context of"
        f" {found.max_seq_len:,} tokens{batch}, {size_text(found.available_bytes)} of {memory}\n"
    )


def _print_candidates(found: TuneModelResponse) -> None:
    columns: tuple[str, ...] = COLUMNS
    rows = [_row(one) for one in found.candidates]
    if found.max_batch_size > 1:
        speeds = [one.speed for one in found.candidates if one.speed is not None]
        together = max((speed.batch_sequences for speed in speeds), default=0)
        columns = (*columns, f"{together} sequences")
        rates = (_rate(one, "batch_decode_tokens_per_s") for one in found.candidates)
        rows = [(*row, rate) for row, rate in zip(rows, rates, strict=True)]
    print_table(columns, rows, numbers=[name for name in columns if name not in LEFT])


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
