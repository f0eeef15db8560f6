"""`penstock completions`: the scripts, and the completions that a shell gets from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.models.hub.catalogue import CATALOGUE


@pytest.fixture
def program(tmp_path):
    """A folder on PATH with the command `penstock`, and an empty home."""
    (tmp_path / "bin").mkdir()
    file = tmp_path / "bin" / "penstock"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock "$@"\n')
    file.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{file.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PENSTOCK_HOME": str(tmp_path / "home"),
    }


def completed(program, tmp_path, *words: str) -> set[str]:
    """Return the completions of the last word in bash."""
    script = CliRunner().invoke(app, ["completions", "bash"]).stdout
    shell = f"""{script}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_penstock_completion penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    run = subprocess.run(
        ["bash", "-c", shell, "bash", *words],
        capture_output=True,
        text=True,
        check=True,
        env=program,
        cwd=tmp_path,
    )
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["penstock", "ser"], {"serve"}),
        (["penstock", "cache", ""], {"list", "remove", "verify"}),
        (["penstock", "serve", "--quantiz"], {"--quantization"}),
        (["penstock", "serve", "--quantization", "int"], {"int4", "int8"}),
        (["penstock", "completions", ""], {"bash", "zsh", "fish"}),
        (["penstock", "serve", "./"], set()),  # bash completes files
    ],
)
def test_bash_completes_commands_options_and_choices(program, tmp_path, words, expected):
    assert completed(program, tmp_path, *words) == expected


def test_bash_completes_models(program, tmp_path):
    (tmp_path / "own.gguf").write_bytes(b"")
    (tmp_path / "home" / "models" / "who--what").mkdir(parents=True)
    known = completed(program, tmp_path, "penstock", "pull", "")
    assert known == {*CATALOGUE, "own.gguf", "who/what"}
    assert completed(program, tmp_path, "penstock", "cache", "remove", "w") == {"who/what"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid_in_its_shell(shell):
    script = CliRunner().invoke(app, ["completions", shell]).stdout
    assert "_PENSTOCK_COMPLETE" in script and "penstock" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", script], check=True)


def test_an_unknown_shell_is_refused():
    refused = CliRunner().invoke(app, ["completions", "tcsh"])
    assert refused.exit_code == 2 and "bash" in refused.stderr
