"""`penstock serve`."""

from __future__ import annotations

import msgspec

from penstock.cli.options import Chosen, with_settings
from penstock.config import (
    ServingSettings,
    StoreSettings,
    bound_heap,
    bound_library_threads,
    read_environment,
)


@with_settings(server=True)
def serve(chosen: Chosen) -> None:
    """Serve one model over HTTP, or several that a file names."""
    serve_settings(chosen.serving())


def serve_settings(settings: ServingSettings) -> None:
    """Fetch the models if need be, and serve them until a signal. Raises ModelError,
    SettingsError, OSError."""
    bound_library_threads()
    bound_heap()
    # Imported here: a command that is not run costs nothing (`penstock --help` < 0.3 s).
    from penstock.api.access_log import configure_access_log
    from penstock.api.server import run_server
    from penstock.base.logs import configure_logging
    from penstock.base.stacks import tell_stacks

    configure_logging()
    tell_stacks()
    server = settings.server
    configure_access_log(server.access_log_format, enabled=not server.disable_access_log)
    check_store(server.store)
    run_server(with_ids(settings), say=_say)


def with_ids(settings: ServingSettings) -> ServingSettings:
    """The same with every model fetched and called by an id. Raises ModelError, SettingsError."""
    from penstock.cli.fetch import fetch_model
    from penstock.config.limits import check_models

    models = []
    for model in settings.models:
        files = fetch_model(model.engine.model)
        name = model.id or files.model_id
        aliases = tuple(alias for alias in model.aliases if alias != name)
        models.append(msgspec.structs.replace(model, id=name, aliases=aliases))
    check_models(models, settings.default_model_id)
    return msgspec.structs.replace(settings, models=tuple(models))


def check_store(settings: StoreSettings) -> None:
    """Open the store and close it again, if the operator named a place of it: what is wrong is told
    before a model is fetched and loaded. A store that nobody named is tried while the model loads.
    Raises SettingsError."""
    if settings.url is None and settings.blobs is None and settings.skills_dir is None:
        return
    import asyncio

    from penstock.store import Store

    async def try_it() -> None:
        store = await Store.open(settings.located(read_environment().home))
        await store.close()

    asyncio.run(try_it())


def _say(text: str) -> None:
    print(text, flush=True)
