"""List the files that the Python tests need on the emulated machine.

Usage: python_files.py TESTS, a folder or a file. Runs the tests of one ISA on this machine, then
prints the files that the interpreter loaded or opened: modules with their byte code, shared
libraries, and the files of the virtual environment.
"""

from __future__ import annotations

import contextlib
import encodings
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

OPENED: set[str] = set()


def modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if source:
            yield source
            yield importlib.util.cache_from_source(source) if source.endswith(".py") else source
    for path in OPENED:  # includes modules that replaced themselves in sys.modules
        yield path
        if path.endswith(".pyc") and "-pytest-" not in path:  # pytest's own, of rewritten tests
            yield importlib.util.source_from_cache(path)


def note_opened(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook that records the Python files that are opened."""
    if event == "open" and isinstance(path := arguments[0], str) and path.endswith((".py", ".pyc")):
        OPENED.add(os.path.abspath(path))


def libraries() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith("/") and ".so" in path:
            name = Path(path)
            yield from map(str, name.parent.glob(name.name.split(".so")[0] + ".so*"))


def interpreter() -> Iterator[str]:
    yield sys.executable
    yield os.path.realpath(sys.executable)
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    yield from map(str, Path(sys.prefix).glob("lib/python3*/site-packages/*.pth"))
    yield from map(str, Path(encodings.__file__).parent.glob("*.py"))
    if "torch" in sys.modules:  # torch looks for it at import
        yield str(Path(sys.modules["torch"].__file__ or "").parent / "bin" / "torch_shm_manager")


def main() -> None:
    sys.addaudithook(note_opened)
    tests = sys.argv[1]
    settings = ["-c", "tools/emulate/pytest.ini", "-q", "-p", "no:cacheprovider"]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main([*settings, tests, "-k", "avx2"])
    if status != 0:
        raise SystemExit(status)
    folder = Path(tests) if os.path.isdir(tests) else Path(tests).parent
    own = [str(path) for path in folder.glob("*.py")] + ["tests/conftest.py", settings[1]]
    names = {*modules(), *libraries(), *interpreter(), *map(os.path.abspath, own)}
    for name in sorted(names):
        if os.path.exists(name):
            print(name.lstrip("/"))


if __name__ == "__main__":
    main()
