"""What this installation runs on, for scanners: `python -m penstock.system.sbom`.

Writes a CycloneDX 1.6 document to standard output. It has the Python packages that a server needs,
with what those need, as they are installed here; not those of tests and of extras that no package
asked for. Wheels bring native code of their own, which their makers tell of.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, Final

from msgspec import json

ROOT: Final = "penstock"
REQUIREMENT: Final = re.compile(r"(?P<name>[\w.-]+)\s*(?:\[(?P<extras>[^\]]*)\])?(?P<rest>.*)")
EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)""")


def bill_of_materials() -> dict[str, Any]:
    """The CycloneDX document. Raises PackageNotFoundError where Penstock is not installed."""
    needed = _closure()
    root, *others = (_component(found) for found, _ in needed.values())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root | {"type": "application"}},
        "components": sorted(others, key=lambda one: str(one["name"])),
        "dependencies": [
            {"ref": _purl(found), "dependsOn": sorted(_purl(needed[name][0]) for name in names)}
            for found, names in needed.values()
        ],
    }


def _closure() -> dict[str, tuple[Distribution, set[str]]]:
    """name -> what is installed, and the names of what it needs; Penstock first."""
    needed: dict[str, tuple[Distribution, set[str]]] = {}
    asked = {(ROOT, "")}
    open_ones = [(ROOT, "")]
    while open_ones:
        name, extra = open_ones.pop()
        found, names = needed.setdefault(name, (distribution(name), set()))
        for wanted in _requirements(found, extra):
            names.add(wanted[0])
            if wanted not in asked:
                asked.add(wanted)
                open_ones.append(wanted)
    return needed


def _requirements(of: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """(name, extra) of what is needed with an extra, or without any. What is not installed is for
    other systems."""
    for text in of.requires or ():
        match = REQUIREMENT.match(text)
        assert match is not None, text
        of_extra = EXTRA.search(match["rest"])
        if (of_extra[1] if of_extra else "") != extra:
            continue
        name = _normal(match["name"])
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        yield name, ""
        yield from ((name, _normal(one)) for one in (match["extras"] or "").split(",") if one)


def _component(found: Distribution) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": _purl(found),
        "name": _normal(found.name),
        "version": found.version,
        "purl": _purl(found),
    }


def _purl(found: Distribution) -> str:
    return f"pkg:pypi/{_normal(found.name)}@{found.version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


if __name__ == "__main__":
    sys.stdout.buffer.write(json.format(json.encode(bill_of_materials())) + b"\n")
