"""`penstock pull` and `penstock models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from penstock.cli.model_names import model_names
from penstock.cli.output import JSON_OPTION, print_json, print_table, size_text
from penstock.cli.settings_parameters import DEFAULT_MODEL_HELP
from penstock.config import EngineSettings, read_environment

if TYPE_CHECKING:
    from penstock.models.hub.catalogue import CatalogueEntry
    from penstock.models.hub.hub_access import HubAccess
    from penstock.models.hub.model_files import ModelFiles


def pull(
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help=DEFAULT_MODEL_HELP, autocompletion=model_names),
    ] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Download a model, so that serving it needs no network."""
    name = model or EngineSettings().model
    files = fetch_model(name)
    if as_json:
        print_json({"name": name, "kind": files.kind, "path": str(files.path)})
    else:
        typer.echo(f"{name}: {files.path}")


def models(as_json: Annotated[bool, JSON_OPTION] = False) -> None:
    """List the models known by name, and whether they are downloaded."""
    from penstock.models.hub.catalogue import CATALOGUE
    from penstock.models.hub.sources import is_fetched

    home = read_environment().home
    listed = [(entry, is_fetched(entry, home)) for entry in CATALOGUE.values()]
    if as_json:
        print_json({"models": [_described(entry, fetched) for entry, fetched in listed]})
        return
    rows = [
        (
            entry.name,
            size_text(entry.size_bytes) if entry.size_bytes else "-",
            entry.licence,
            "yes" if fetched else "no",
            entry.description,
        )
        for entry, fetched in listed
    ]
    print_table(("Name", "Size", "Licence", "On disk", "Model"), rows, numbers=("Size",))
    typer.echo("\nA folder, a .gguf file or a Hugging Face id (owner/name) is served too.")


def _described(entry: CatalogueEntry, fetched: bool) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "licence": entry.licence,
        "hub_id": entry.hub_id,
        "size_bytes": entry.size_bytes,
        "downloaded": fetched,
    }


def fetch_model(name: str) -> ModelFiles:
    """Return the files of a model. Missing files are downloaded with a progress bar. Raises
    ModelError."""
    from penstock.cli.progress_bars import ProgressBars
    from penstock.models.hub.sources import resolve_model

    with ProgressBars() as bars:
        return resolve_model(name, read_environment().home, hub_access(), bars.update)


def hub_access() -> HubAccess:
    """Return access to the Hugging Face hub, as the environment configures it."""
    from penstock.models.hub.hub_access import hub_access_of

    return hub_access_of(read_environment())
