"""The commands of `penstock`, and the exit status for their errors.

Exit status: 0: ok, 1: error, 2: wrong usage, 130: interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer

from penstock import __version__
from penstock.base.errors import ModelError, ServiceError
from penstock.cli.bench import bench
from penstock.cli.cache import app as cache_app
from penstock.cli.completions import VARIABLE, completions, prepare_completion
from penstock.cli.doctor import doctor
from penstock.cli.help_text import SETTINGS, PlainCommand, PlainGroup
from penstock.cli.mcp import app as mcp_app
from penstock.cli.pull import models, pull
from penstock.cli.quantize import quantize
from penstock.cli.run import RunCommand, run
from penstock.cli.serve import serve
from penstock.cli.settings_parameters import MultiValueCommand
from penstock.cli.tune import tune
from penstock.config import SettingsError

USE: Final = "Use a model"
STORE: Final = "Download and prepare models"
MACHINE: Final = "This machine"

ORDER: Final = (
    *("serve", "run"),
    *("pull", "models", "cache", "quantize", "tune"),
    *("bench", "doctor", "mcp", "completions"),
)

WELCOME: Final = """\
Penstock {version} serves language models over OpenAI- and Anthropic-compatible APIs.

  penstock serve     serve the default model on port 1234, with a web page at /ui
  penstock run       chat with it in this terminal
  penstock doctor    check whether this machine can serve

`penstock --help` lists all commands. Documentation: README.md and docs/ in the sources.
"""


class RootGroup(PlainGroup):
    """The commands, in the order of the help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(ORDER)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, or print completions for a shell."""
        return super().main(*args, **{"complete_var": VARIABLE, **extra})


app = typer.Typer(
    name="penstock",
    cls=RootGroup,
    help="Serve language models over OpenAI- and Anthropic-compatible APIs.\n\n"
    "Exit status: 0 ok, 1 error, 2 wrong usage, 130 interrupted.",
    epilog="penstock serve\n"
    "penstock run Qwen/Qwen3-0.6B\n"
    "penstock bench --streams 1,2,4,8 --report bench.html",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    context_settings=SETTINGS,
)
app.command(
    cls=MultiValueCommand,
    rich_help_panel=USE,
    epilog="penstock serve\n"
    "penstock serve Qwen/Qwen3-0.6B --port 8080\n"
    "penstock serve ./model.gguf --max-model-len 8192 --agent\n"
    "penstock serve --config penstock.toml",
)(serve)
app.command(
    cls=RunCommand,
    rich_help_panel=USE,
    epilog="penstock run\n"
    "penstock run Qwen/Qwen3-0.6B --temperature 0.7\n"
    'penstock run "Summarise this." < report.txt',
)(run)
app.command(
    cls=PlainCommand,
    rich_help_panel=STORE,
    epilog="penstock pull\npenstock pull Qwen/Qwen3-0.6B",
)(pull)
app.command(
    cls=PlainCommand, rich_help_panel=STORE, epilog="penstock models\npenstock models --json"
)(models)
app.add_typer(cache_app, name="cache", rich_help_panel=STORE)
app.command(
    cls=PlainCommand,
    rich_help_panel=STORE,
    epilog="penstock quantize ./model-f16.gguf ./model-q4_k_m.gguf --text sample.txt\n"
    "penstock quantize ./model-f16.gguf ./model-q3_k_m.gguf --type Q3_K_M --imatrix model.imatrix\n"
    "penstock quantize ./model.gguf ./mixed.gguf --tensor-type 'ffn_down=Q6_K' --type Q4_K_S\n"
    "penstock quantize Qwen/Qwen3-0.6B ./qwen3-int4 --type int4",
)(quantize)
app.command(
    cls=PlainCommand,
    rich_help_panel=STORE,
    epilog="penstock tune Qwen/Qwen3-0.6B\n"
    "penstock tune Qwen/Qwen3-0.6B --profile fast --max-model-len 16384 --max-batch-size 4\n"
    "penstock tune ./model.gguf --emit-config penstock.toml",
)(tune)
app.command(
    cls=PlainCommand,
    rich_help_panel=MACHINE,
    epilog="penstock bench\n"
    "penstock bench ./model.gguf --streams 1,2,4,8 --report bench.html\n"
    "penstock bench --compare before.json after.json",
)(bench)
app.command(
    cls=PlainCommand, rich_help_panel=MACHINE, epilog="penstock doctor\npenstock doctor --json"
)(doctor)
app.add_typer(mcp_app, name="mcp", rich_help_panel=MACHINE)
app.command(
    cls=PlainCommand,
    rich_help_panel=MACHINE,
    epilog='eval "$(penstock completions bash)"              # in ~/.bashrc\n'
    'eval "$(penstock completions zsh)"               # in ~/.zshrc, after compinit\n'
    "penstock completions fish > ~/.config/fish/completions/penstock.fish",
)(completions)


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
    """Handle options of `penstock` itself; without a command, say what to do next."""
    if context.invoked_subcommand is None:
        typer.echo(WELCOME.format(version=__version__), nl=False)
        raise typer.Exit(2)


def main() -> None:
    """Run a command. For an operator's mistake, print one line on standard error and exit with
    status 1."""
    prepare_completion()
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
