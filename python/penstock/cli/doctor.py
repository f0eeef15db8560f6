"""`penstock doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.config import ServerSettings, read_environment

MARKS = {"ok": "[green]ok[/green]", "warn": "[yellow]warn[/yellow]", "error": "[red]error[/red]"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The port to try.")
    ] = ServerSettings().port,
) -> None:
    """Check whether this machine can serve. Status 1 where something is missing."""
    import msgspec
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from penstock.system.checks import all_checks

    checks = all_checks(read_environment(), port)
    if as_json:
        typer.echo(msgspec.json.encode({"checks": checks}).decode())
    else:
        table = Table("Check", "", "", "What would help", box=None, pad_edge=False)
        for check in checks:
            message, help_text = escape(check.message), escape(check.suggestion or "")
            table.add_row(check.name, MARKS[check.status], message, help_text)
        Console().print(table)
    if any(check.status == "error" for check in checks):
        raise typer.Exit(1)
