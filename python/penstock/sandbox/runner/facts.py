"""Describes the Python that runs it: prints one JSON object. It runs outside the sandbox.

The server starts it once with the tools' Python: `facts.py RUNNER_FOLDER`.

    {"version", "executable", "prefixes": [path], "path": [path], "packages": [name],
     "code": {file name: compiled code in hex}}
"""

from __future__ import annotations

import json
import marshal
import os
import sys
from importlib import metadata

MAX_PACKAGES = 2000
COMPILED = ("interpreter.py", "pictures.py", "figures.py")


def compiled(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        code = compile(file.read(), f"<penstock {name}>", "exec", dont_inherit=True, optimize=2)
    return marshal.dumps(code).hex()


def package_names() -> list[str]:
    names = {str(d.metadata["Name"]) for d in metadata.distributions() if d.metadata["Name"]}
    return sorted(names, key=str.lower)[:MAX_PACKAGES]


def main() -> None:
    in_environment = sys.prefix != sys.base_prefix
    facts = {
        "version": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable if in_environment else os.path.realpath(sys.executable),
        "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
        "path": [entry for entry in sys.path if os.path.exists(entry)],
        "packages": package_names(),
        "code": {name: compiled(sys.argv[1], name) for name in COMPILED},
    }
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
