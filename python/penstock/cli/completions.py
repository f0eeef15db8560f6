"""`penstock completions`: prints a script that completes commands in a shell."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

PROGRAM: Final = "penstock"
VARIABLE: Final = "_PENSTOCK_COMPLETE"
"""The environment variable by which the script asks the program for completions."""

Shell = Literal["bash", "zsh", "fish"]


def completions(
    shell: Annotated[Shell, typer.Argument(help="The shell that will read the script.")],
) -> None:
    """Print a script that completes commands in a shell.

    It completes commands, options, their choices, names of models, and files.
    """
    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)
    typer.echo(script)


def prepare_completion() -> None:
    """Register the shells that typer supports. typer does so by itself only together with its
    option --install-completion, which edits the user's files."""
    completion_init()
