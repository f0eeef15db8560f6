"""Names of models that are near a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from penstock.models.hub.catalogue import CATALOGUE
from penstock.models.hub.hub_access import HubAccess

CUTOFF: Final = 0.7
SHORTEST: Final = 4
"""The shortest name that is compared with the beginnings of others."""


def near(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that is nearest to `name`, or begins with something near, whatever
    their case; None if none is near."""
    scored = [(_likeness(name.lower(), candidate.lower()), candidate) for candidate in names]
    best = max(scored, default=(0.0, ""))
    return best[1] if best[0] >= CUTOFF else None


def _likeness(name: str, candidate: str) -> float:
    """Return how alike two names are, from 0 to 1: the whole names, the names without their
    owners, and a short name with the beginning of a long one."""
    own, other = name.rpartition("/")[2], candidate.rpartition("/")[2]
    beginning = other[: len(own) + 1] if len(own) >= SHORTEST else other
    pairs = ((name, candidate), (own, other), (own, beginning))
    return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)


def known_names(home: Path, hub: HubAccess) -> list[str]:
    """Return the names that serve a model without a download, and those of the catalogue: short
    names and hub ids."""
    slots = [path.name for path in _entries(home / "models") if path.is_dir()]
    names = [slot.replace("--", "/") for slot in slots if not slot.endswith(".partial")]
    if hub.cache is not None:
        prefix = "models--"
        repositories = (p.name for p in _entries(hub.cache) if p.name.startswith(prefix))
        names += [name.removeprefix(prefix).replace("--", "/") for name in repositories]
    return sorted({*CATALOGUE, *(entry.hub_id for entry in CATALOGUE.values()), *names})


def hint(name: str, home: Path, hub: HubAccess) -> str:
    """Return the advice for a name that belongs to no model."""
    close = near(name, known_names(home, hub))
    return f"did you mean {close}?" if close else "`penstock models` lists the known names"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
