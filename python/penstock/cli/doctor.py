"""`penstock doctor`: checks whether this machine can run a server."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.config import ServerSettings, read_environment

MARKS = {"ok": "[green]ok[/green]", "warn": "[yellow]warn[/yellow]", "error": "[red]error[/red]"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port to check.")
    ] = ServerSettings().port,
) -> None:
    """Check whether this machine can serve. Exits with status 1 if a check fails."""
    import msgspec
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from penstock.system.checks import all_checks

    checks = all_checks(read_environment(), port)
    if as_json:
        typer.echo(msgspec.json.encode({"checks": checks}).decode())
    else:
        table = Table("Check", "", "", "Suggestion", box=None, pad_edge=False)
        for check in checks:
            message, help_text = escape(check.message), escape(check.suggestion or "")
            table.add_row(check.name, MARKS[check.status], message, help_text)
        Console().print(table)
    if any(check.status == "error" for check in checks):
        raise typer.Exit(1)
