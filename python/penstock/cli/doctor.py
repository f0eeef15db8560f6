"""`penstock doctor`: checks whether this machine can run a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.config import SandboxSettings, ServerSettings, read_environment

if TYPE_CHECKING:
    from penstock.system.checks import Check

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

    checks = [*all_checks(read_environment(), port), _media_check(), *_sandbox_checks()]
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


def _media_check() -> Check:
    """Start a decoding process, which decodes samples and gives up its rights."""
    import asyncio

    from penstock.media.decoders import MediaDecoders, MediaUnavailable
    from penstock.media.landlock import landlock_abi
    from penstock.media.limits import MediaLimits
    from penstock.system.checks import Check

    try:
        asyncio.run(MediaDecoders(None, MediaLimits()).try_start())
    except MediaUnavailable as error:
        return Check("media", "warn", f"cannot be decoded: {error}", error.suggestion)
    layers = "seccomp and Landlock" if landlock_abi() else "seccomp"
    return Check("media", "ok", f"images, audio and video are decoded under {layers}")


def _sandbox_checks() -> list[Check]:
    """Measure the sandbox with default settings, and return a check for each layer."""
    from penstock.system.agent_facts import LAYER_NAMES, sandbox_checks, sandbox_info
    from penstock.system.checks import Check

    settings = SandboxSettings()
    try:
        from penstock.sandbox.launcher import probe
    except ImportError as error:
        return [Check("sandbox_launcher", "warn", f"cannot be loaded: {error}")]
    found = probe(settings)
    layers = {name: getattr(found, name) for name in LAYER_NAMES}
    return sandbox_checks(sandbox_info(settings, layers, found.network, found.missing))
