"""Completes the names of models on the command line."""

from __future__ import annotations

from pathlib import Path

from penstock.config import read_environment


def model_names(incomplete: str) -> list[str]:
    """Return the names of models that begin with `incomplete`: those of the catalogue, downloaded
    ones, and models in the current folder. For a path the list is empty, and the shell completes
    files."""
    from penstock.models.hub.catalogue import CATALOGUE

    here = [path.name for path in Path().iterdir() if _is_model(path)]
    return _beginning(incomplete, [*CATALOGUE, *downloaded_names(""), *here])


def downloaded_names(incomplete: str) -> list[str]:
    """Return the names of downloaded models that begin with `incomplete`."""
    from penstock.models.hub.cached_models import cached_models
    from penstock.models.hub.hub_access import hub_access_of

    environment = read_environment()
    models = cached_models(environment.home, hub_access_of(environment))
    return _beginning(incomplete, [model.name for model in models])


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or (path / "config.json").is_file()
