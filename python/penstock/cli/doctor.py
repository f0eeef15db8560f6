"""`penstock doctor`: checks whether this machine can run a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.output import JSON_OPTION, print_json, print_table
from penstock.config import SandboxSettings, ServerSettings, read_environment

if TYPE_CHECKING:
    from penstock.system.checks import Check


def doctor(
    as_json: Annotated[bool, JSON_OPTION] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port to check.")
    ] = ServerSettings().port,
) -> None:
    """Check whether this machine can serve. Exits with status 1 if a check fails."""
    import msgspec

    from penstock.system.checks import all_checks

    checks = [*all_checks(read_environment(), port), _media_check(), *_sandbox_checks()]
    if as_json:
        print_json({"checks": msgspec.to_builtins(checks)})
    else:
        print_table(("Check", "State", "Finding"), [row for c in checks for row in _rows(c)])
        typer.echo(f"\n{_verdict(checks)}")
    if any(check.status == "error" for check in checks):
        raise typer.Exit(1)


def _rows(check: Check) -> list[tuple[str, str, str]]:
    """Return the table rows of a check: its finding, and a remedy below it."""
    found: list[tuple[str, str, str]] = [(check.name, check.status, check.message)]
    return [*found, ("", "", f"-> {check.suggestion}")] if check.suggestion else found


def _verdict(checks: list[Check]) -> str:
    """Return the line that sums up the checks."""
    errors = sum(check.status == "error" for check in checks)
    warnings = sum(check.status == "warn" for check in checks)
    able = "cannot serve yet" if errors else "can serve"
    return f"This machine {able}: errors: {errors}, warnings: {warnings}."


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
