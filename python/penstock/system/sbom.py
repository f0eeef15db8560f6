"""Writes the software bill of materials of this installation: `python -m penstock.system.sbom`.

The output is a CycloneDX 1.6 document. It lists the installed Python packages that a server needs,
with their dependencies, but not the packages of tests or of unused extras. It does not list native
libraries inside wheels.
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
    """Return the CycloneDX document as JSON values. Raises PackageNotFoundError if Penstock is not
    installed."""
    needed = _closure()
    root, *others = (_component(found) for found, _ in needed.values())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root | {"type": "application"}},
        "components": sorted(others, key=lambda component: str(component["name"])),
        "dependencies": [
            {"ref": _purl(found), "dependsOn": sorted(_purl(needed[name][0]) for name in names)}
            for found, names in needed.values()
        ],
    }


def _closure() -> dict[str, tuple[Distribution, set[str]]]:
    """Return name -> (installed distribution, names of its dependencies) of Penstock and all
    packages that it needs, Penstock first."""
    needed: dict[str, tuple[Distribution, set[str]]] = {}
    seen = {(ROOT, "")}
    pending = [(ROOT, "")]
    while pending:
        name, extra = pending.pop()
        found, names = needed.setdefault(name, (distribution(name), set()))
        for requirement in _requirements(found, extra):
            names.add(requirement[0])
            if requirement not in seen:
                seen.add(requirement)
                pending.append(requirement)
    return needed


def _requirements(of: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Yield (name, extra) of each requirement of a distribution. Requirements whose package is not
    installed are omitted: they are for other systems.

    `extra`: the extra of `of` whose requirements to yield; "": the requirements without an extra.
    """
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
