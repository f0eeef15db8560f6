"""The walls of the house: who may import whom, and who may read the environment."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lowest first: an import may only point down this list (or stay in its room).
ROOMS = [
    "base",
    "config",
    "dialog",
    "kernels",
    "quant",
    "models",
    "adapters",
    "scheduler",
    "grammar",
    "runtime",
    "engine",
    "system",
    "tune",
    "text",
    "quantizing",
    "generation",
    "store",
    "fetch",
    "media",
    "sandbox",
    "agent",
    "llm",
    "api",
    "cli",
]
# Rooms that know only what is named, lower ones included.
ONLY = {
    "base": set(),
    "dialog": {"base"},
    "kernels": set(),
    "scheduler": {"base", "dialog"},
    "grammar": {"base", "dialog", "scheduler"},
    "store": {"base", "config", "dialog"},
    "fetch": {"base"},
    "media": {"base", "config", "models"},
    "sandbox": {"base", "config"},
}
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb"}
NO_TORCH = ["base", "config", "dialog", "quant", "models", "adapters", "scheduler", "grammar",
            "engine", "system", "tune", "text", "quantizing", "generation", "store", "fetch",
            "media", "sandbox", "agent", "llm", "api", "cli"]  # fmt: skip


@functools.cache
def sources() -> list[tuple[str, Path]]:
    """(module name, path) of every Python file of the package."""
    found = []
    for folder, prefix in [("python/penstock", "penstock"), ("kernels", "penstock.kernels")]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" in path.parts:  # packages for the web page, installed by npm
                continue
            parts = [prefix, *path.relative_to(ROOT / folder).with_suffix("").parts]
            found.append((".".join(p for p in parts if p != "__init__"), path))
    return found


@functools.cache
def imports(path: Path) -> list[tuple[str, int]]:
    """(imported module, line) for every import of a file, those inside functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            found.append((node.module, node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "penstock" and parts[1] in ROOMS else None


def test_imports_only_point_down() -> None:
    wrong = []
    for module, path in sources():
        here = room(module)
        for target, line in imports(path):
            there = room(target)
            if here is None or there is None or here == there:
                continue
            allowed = ONLY.get(here)
            if ROOMS.index(there) > ROOMS.index(here) or (
                allowed is not None and there not in allowed
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("room", "known"),
    [
        ("penstock.api.schema", ("penstock.system",)),
        ("penstock.api.codecs", ("penstock.api.schema",)),
    ],
)
def test_schema_and_codecs_know_only_the_vocabulary(room: str, known: tuple[str, ...]) -> None:
    wrong = []
    for module, path in sources():
        if not module.startswith(room):
            continue
        for target, line in imports(path):
            if target.startswith("penstock.") and not target.startswith(
                ("penstock.base", "penstock.dialog", room, *known)
            ):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {target}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles() -> None:
    modules = {module for module, _ in sources()}
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in sources():
        edges[module] = {t for t, _ in imports(path) if t in modules and t != module}
        # importing a submodule runs its packages; a package re-exporting its files is no cycle
        edges[module] = {t for t in edges[module] if not t.startswith(module + ".")}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for target in sorted(edges[module]):
            visit(target, (*trail, module))
        done.add(module)

    for module in sorted(modules):
        visit(module, ())


@pytest.mark.parametrize("heavy", ["torch", "transformers", "triton"])
def test_serving_rooms_import_nothing_heavy(heavy: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for module, path in sources()
        if room(module) in NO_TORCH
        for target, line in imports(path)
        if target.split(".")[0] == heavy
    ]
    assert not wrong, "\n".join(wrong)


def reads_of_environment(source: str) -> list[int]:
    """Lines that read the environment, whichever way the name came into the file."""
    if not any(name in source for name in {*ENVIRONMENT, "from os import"}):
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in ENVIRONMENT:
                found.append(node.lineno)
            case ast.ImportFrom(module="os", names=names):
                found += [node.lineno for alias in names if alias.name in {*ENVIRONMENT, "*"}]
            case _:
                pass
    return found


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['X']",
        "import os as o\no.getenv('X')",
        "from os import environ",
        "from os import getenv as g",
        "from os import *",
    ],
)
def test_a_read_of_the_environment_is_seen(source: str) -> None:
    assert reads_of_environment(source) == [source.count("\n") + 1]


def test_only_config_reads_the_environment() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for module, path in sources()
        if room(module) != "config"
        for line in reads_of_environment(path.read_text())
    ]
    native = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"}]
    assert native
    wrong += [str(p.relative_to(ROOT)) for p in native if "getenv" in p.read_text()]
    assert not wrong, "\n".join(wrong)


def test_no_file_outgrows_one_subject() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for _, path in sources()
        if (lines := path.read_text().count("\n")) > 500
    ]
    assert not long, "\n".join(long)


def test_test_files_have_names_of_their_own() -> None:
    """Their folders are no packages: pytest imports each by its name, and fails at the second."""
    places = defaultdict(list)
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name not in {"conftest.py", "__init__.py"}:
            places[path.name].append(str(path.relative_to(ROOT)))
    assert [paths for paths in places.values() if len(paths) > 1] == []
