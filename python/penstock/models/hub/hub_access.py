"""Settings for the Hugging Face hub, and look-up in the cache on disk of the hub's own clients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from penstock.config import Environment

COMMIT = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Settings of the Hugging Face hub.

    - `cache`: the cache folder of the hub's own clients (`$HF_HOME/hub`), used if it has the model.
    - `offline`: do not use the network.
    """

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    cache: Path | None = None
    offline: bool = False


def hub_access_of(environment: Environment) -> HubAccess:
    """Return the hub settings that the environment variables specify."""
    return HubAccess(token=environment.hf_token, cache=environment.hf_home / "hub")


def cached_snapshot(access: HubAccess, repository: str, revision: str = "main") -> Path | None:
    """Return the snapshot of a repository's branch, tag or commit in the hub's own cache, or
    None."""
    if access.cache is None:
        return None
    root = access.cache / ("models--" + repository.replace("/", "--"))
    reference = root / "refs" / revision
    if ".." in revision or not reference.is_file():
        commit = revision
    else:
        commit = reference.read_text("ascii", "replace").strip()
    folder = root / "snapshots" / commit
    return folder if COMMIT.fullmatch(commit) and folder.is_dir() else None
