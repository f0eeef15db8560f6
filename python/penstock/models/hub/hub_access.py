"""How the model hub is reached, and what its own cache on this disk already holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Environment

COMMIT = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True, slots=True)
class HubAccess:
    """`cache`: the hub's own cache (`$HF_HOME/hub`), read when it has the model; `offline`: ask
    nothing of the network."""

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    cache: Path | None = None
    offline: bool = False


def hub_access_of(environment: Environment) -> HubAccess:
    """The hub as the environment names it."""
    return HubAccess(token=environment.hf_token, cache=environment.hf_home / "hub")


def cached_snapshot(access: HubAccess, repository: str) -> Path | None:
    """The newest snapshot of a repository in the hub's own cache, as its clients lay it out."""
    if access.cache is None:
        return None
    root = access.cache / ("models--" + repository.replace("/", "--"))
    reference = root / "refs" / "main"
    if not reference.is_file():
        return None
    commit = reference.read_text("ascii", "replace").strip()
    folder = root / "snapshots" / commit
    return folder if COMMIT.fullmatch(commit) and folder.is_dir() else None
