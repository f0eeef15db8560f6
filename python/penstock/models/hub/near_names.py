"""Names of models that are near a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from penstock.models.hub.catalogue import CATALOGUE
from penstock.models.hub.hub_access import HubAccess

CUTOFF = 0.6


def near(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that is nearest to `name`, whatever their case; None if none is
    near."""
    lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=CUTOFF)
    return lower[close[0]] if close else None


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
