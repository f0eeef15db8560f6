"""`penstock pull` and `penstock models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.settings_parameters import MODEL_HELP
from penstock.config import read_environment

if TYPE_CHECKING:
    from penstock.models.hub.hub_access import HubAccess
    from penstock.models.hub.model_files import ModelFiles

MIB = 1024 * 1024


def pull(model: Annotated[str, typer.Argument(help=MODEL_HELP)]) -> None:
    """Download a model, so that serving it needs no network."""
    typer.echo(f"{model}: {fetch_model(model).path}")


def models() -> None:
    """List the models that can be served by name, and whether they are downloaded."""
    from rich.console import Console
    from rich.table import Table

    from penstock.models.hub.catalogue import CATALOGUE
    from penstock.models.hub.sources import is_fetched

    home = read_environment().home
    table = Table("Name", "Model", "Size", "Licence", "Downloaded", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = column.header != "Model"
    table.columns[2].justify = "right"
    for entry in CATALOGUE.values():
        size = f"{entry.size_bytes / MIB:,.0f} MiB" if entry.size_bytes else "-"
        fetched = "yes" if is_fetched(entry, home) else "no"
        table.add_row(entry.name, entry.description, size, entry.licence, fetched)
    Console().print(table)


def fetch_model(name: str) -> ModelFiles:
    """Return the files of a model. Missing files are downloaded with a progress bar. Raises
    ModelError."""
    from penstock.models.hub.sources import resolve_model

    with _Bars() as bars:
        return resolve_model(name, read_environment().home, hub_access(), bars.update)


def hub_access() -> HubAccess:
    """Return access to the Hugging Face hub, as the environment configures it."""
    from penstock.models.hub.hub_access import hub_access_of

    return hub_access_of(read_environment())


class _Bars:
    """Progress bars on standard error. They appear only if something is downloaded."""

    def __init__(self) -> None:
        self._shown = False

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._progress.stop()

    def update(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        """Show that `done_bytes` of `total_bytes` (None: unknown) of the file `name` are
        downloaded."""
        if not self._shown:
            self._show()
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total_bytes)
        self._progress.update(self._tasks[name], completed=done_bytes, total=total_bytes)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskID,
            TextColumn,
            TransferSpeedColumn,
        )

        self._shown = True
        self._tasks: dict[str, TaskID] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._progress.start()
