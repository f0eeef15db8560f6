"""Ctrl-C at any time: exit status 130 and no output."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each program runs `python -m penstock --version` and gets Ctrl-C at one place.
RUN = """
import atexit, os, runpy, signal, sys, types, weakref

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

{prelude}
sys.argv = ["penstock", "--version"]
runpy.run_module("penstock", run_name="__main__")
"""
# Replaces the command-line module.
FAKE = """
def command():
    {body}
fake = types.ModuleType("penstock.cli.main")
fake.main = command
sys.modules["penstock.cli.main"] = fake
"""
IMPORTING = """
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "penstock.cli.main":
            interrupt()
sys.meta_path.insert(0, Finder())
"""
RUNNING = FAKE.format(body="interrupt()")
FINALIZING = FAKE.format(
    body="""value = set()
    kept = weakref.ref(value, interrupt)
    del value"""
)
ENDING = FAKE.format(body="atexit.register(interrupt)")


def ended(prelude: str) -> tuple[int, str, str]:
    program = RUN.format(prelude=prelude)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return run.returncode, run.stdout, run.stderr


@pytest.mark.parametrize("prelude", [IMPORTING, RUNNING, FINALIZING, ENDING])
def test_an_interrupt_ends_the_command_without_a_traceback(prelude):
    assert ended(prelude) == (130, "", "")


def test_a_background_process_ignores_the_interrupt():
    status, said, wrong = ended(f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n{IMPORTING}")
    assert (status, wrong) == (0, "") and said.startswith("penstock ")
