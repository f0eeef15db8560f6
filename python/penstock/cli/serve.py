"""`penstock serve`."""

from __future__ import annotations

from penstock.cli.options import Chosen, with_settings
from penstock.config import EngineSettings, ServerSettings


@with_settings(server=True)
def serve(chosen: Chosen) -> None:
    """Serve a model over HTTP: chat, completions or embeddings; models, health, metrics."""
    engine, server = chosen.settings()
    serve_settings(engine, server)


def serve_settings(engine: EngineSettings, server: ServerSettings) -> None:
    """Fetch the model if need be, and serve it until a signal. Raises ModelError, OSError."""
    # Imported here: a command that is not run costs nothing (`penstock --help` < 0.3 s).
    from penstock.api.access_log import configure_access_log
    from penstock.api.server import run_server
    from penstock.base.logs import configure_logging
    from penstock.cli.fetch import fetch_model

    configure_logging()
    configure_access_log(server.access_log_format, enabled=not server.disable_access_log)
    fetch_model(engine.model)
    run_server(engine, server, say=_say)


def _say(text: str) -> None:
    print(text, flush=True)
