"""Who may write to a process's standard output."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os, subprocess
from penstock.base.output import take_standard_output
output = take_standard_output()
print("a library's line", flush=True)
os.write(1, b"a native one's\\n")
subprocess.run(["echo", "a child's"], check=True)
output.write(b"ours\\n")
output.flush()
"""


def test_what_others_print_is_not_among_our_lines() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True, text=True)
    assert done.stdout == "ours\n"
    assert done.stderr == "a library's line\na native one's\na child's\n"
