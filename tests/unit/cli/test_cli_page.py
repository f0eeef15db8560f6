"""docs/cli.md has the help that the program prints."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.cli_page import with_help_texts
from penstock.cli.help_text import summary
from penstock.cli.main import ORDER, app

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()


def test_the_page_is_current():
    assert with_help_texts(PAGE) == PAGE, (
        "run `python -m penstock.cli.cli_page docs/cli.md`, which writes it anew"
    )


def test_every_command_is_in_the_order_of_the_help():
    assert set(ORDER) == set(typer.main.get_command(app).commands)


def commands():
    """Return (words, command) for each command that runs something."""
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from (((name, inner), c) for inner, c in command.commands.items())
        else:
            yield (name,), command


ALL = dict(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_command_has_a_summary_of_one_line_and_an_example(words):
    of_group, own = (
        CliRunner().invoke(app, [*asked, "--help"], env={"TERMINAL_WIDTH": "80"}).stdout
        for asked in (words[:-1], words)
    )
    (line,) = [line for line in of_group.splitlines() if line.startswith(f"  {words[-1]} ")]
    assert len(line) <= 80 and line.endswith(summary(ALL[words]))
    assert f"Examples:\n  {ALL[words].epilog.splitlines()[0]}\n" in own


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_the_examples_of_a_command_are_valid(words):
    for example in ALL[words].epilog.splitlines():
        arguments = example.partition("#")[0].replace('eval "$(', "").replace(')"', "")
        program, *given = arguments.partition(">")[0].split()
        assert program == "penstock"
        root = typer.main.get_command(app)
        with root.make_context("penstock", given[:1], resilient_parsing=True) as context:
            command, rest = root.get_command(context, given[0]), given[1:]
            while hasattr(command, "commands"):
                command, rest = command.commands[rest[0]], rest[1:]
            command.make_context(given[0], rest, parent=context).close()


def test_wrong_usage_is_one_line_that_names_the_help():
    wrong = CliRunner().invoke(app, ["serve", "--prot", "1"], prog_name="penstock")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("penstock serve: no such option: --prot")
    assert "--port" in wrong.stderr and wrong.stderr.endswith("see `penstock serve --help`\n")
    assert wrong.stderr.count("\n") == 1


def test_a_group_without_a_command_shows_its_help():
    alone = CliRunner().invoke(app, ["cache"], prog_name="penstock")
    assert alone.exit_code == 2 and "\n  verify " in alone.output
