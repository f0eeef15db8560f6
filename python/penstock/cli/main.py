"""The commands of `penstock`, and the exit status for their errors."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.base.errors import ModelError, ServiceError
from penstock.cli.bench import bench
from penstock.cli.doctor import doctor
from penstock.cli.mcp import app as mcp_app
from penstock.cli.pull import models, pull
from penstock.cli.run import RunCommand, run
from penstock.cli.serve import serve
from penstock.cli.settings_parameters import MultiValueCommand
from penstock.config import SettingsError


class PlainHelpGroup(TyperGroup):
    """A command group whose help is plain text, because rich's boxes would double the time of
    `--help`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperGroup, self).format_help(ctx, formatter)


app = typer.Typer(
    name="penstock",
    cls=PlainHelpGroup,
    help="Serve language models over OpenAI- and Anthropic-compatible APIs.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command(cls=MultiValueCommand)(serve)
app.command(cls=RunCommand)(run)
for command in (pull, models, bench, doctor):
    app.command()(command)
app.add_typer(mcp_app, name="mcp", cls=PlainHelpGroup)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Handle options of `penstock` itself; without a command, show the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """Run a command. For an operator's mistake, print one line on standard error and exit with
    status 1."""
    try:
        app()
    except (ModelError, SettingsError, ServiceError) as error:
        sys.exit(f"penstock: {error}")
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        sys.exit(f"penstock: {place}{error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
