"""`penstock serve`: the HTTP server."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from penstock.cli.ready_screen import Announcement, ready_json, ready_line, ready_screen
from penstock.cli.settings_options import SERVE_OPTIONS
from penstock.cli.settings_parameters import CommandSettings, with_settings
from penstock.config import (
    ServingSettings,
    StoreSettings,
    limit_blas_threads,
    limit_malloc_arenas,
    read_environment,
)


@with_settings(SERVE_OPTIONS)
def serve(
    parsed: CommandSettings,
    as_json: Annotated[
        bool, typer.Option("--json", help="Describe the ready server as one line of JSON.")
    ] = False,
) -> None:
    """Serve one model over HTTP, or several from a TOML file.

    When the server is ready, a terminal gets its addresses and examples, and a pipe gets the line
    `Penstock ... ready on http://...`.
    """
    if as_json:
        serve_settings(parsed.serving(), ready_json)
    else:
        serve_settings(parsed.serving())


def serve_settings(settings: ServingSettings, announcement: Announcement | None = None) -> None:
    """Download missing models, and serve until a signal arrives.

    `announcement`: returns the text for a ready server; None: the screen for a terminal, else the
    ready line.

    Raises ModelError, SettingsError, OSError.
    """
    limit_blas_threads()
    limit_malloc_arenas()
    # Imported here to keep `penstock --help` below 0.3 s.
    from penstock.api.observability.access_log import configure_access_log
    from penstock.api.serving.server import run_server
    from penstock.base.logs import configure_logging
    from penstock.base.stack_dumps import dump_stacks_on_signal
    from penstock.cli.running_server import check_port

    configure_logging()
    dump_stacks_on_signal()
    server = settings.server
    configure_access_log(server.access_log_format, enabled=not server.disable_access_log)
    check_store(server.store)
    check_port(server.host, server.port)
    text = announcement or (ready_screen if sys.stdout.isatty() else ready_line)
    details = _say if text is ready_line else _ignore
    run_server(with_ids(settings), details, lambda ready: _say(text(ready)))


def with_ids(settings: ServingSettings) -> ServingSettings:
    """Download the models and return the settings with the missing ids filled in. Raises ModelError
    and SettingsError."""
    from penstock.cli.pull import fetch_model
    from penstock.config.validation import check_models

    models = []
    for model in settings.models:
        files = fetch_model(model.engine.model)
        name = model.id or files.model_id
        aliases = tuple(alias for alias in model.aliases if alias != name)
        models.append(msgspec.structs.replace(model, id=name, aliases=aliases))
    check_models(models, settings.default_model_id)
    return msgspec.structs.replace(settings, models=tuple(models))


def check_store(settings: StoreSettings) -> None:
    """If the operator configured a store, open and close it to check it before any model is loaded.

    The default store is opened while the models load. Raises SettingsError.
    """
    if settings.url is None and settings.blobs is None and settings.skills_dir is None:
        return
    import asyncio

    from penstock.store import Store

    async def try_it() -> None:
        store = await Store.open(settings.with_defaults(read_environment().home))
        await store.close()

    asyncio.run(try_it())


def _say(text: str) -> None:
    print(text, flush=True)


def _ignore(text: str) -> None:
    """Drop details that the screen and the JSON have in their own form."""
