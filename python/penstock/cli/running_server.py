"""Finds the Penstock server that uses a port, and words the error for a port in use."""

from __future__ import annotations

import errno
import http.client
import json
from typing import Any, Final

from penstock.config import SettingsError

TIMEOUT_S: Final = 1.0
ALL_ADDRESSES: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
DEFAULT: Final = "default"
"""The name of the default model in a list of models."""


def check_port(host: str, port: int) -> None:
    """Check that a server can listen on the address, before any model is loaded. Raises
    SettingsError that names the process which uses the port, and OSError for other causes."""
    from penstock.api.serving.sockets import bind_socket

    try:
        bind_socket(host, port).close()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise SettingsError(port_in_use(host, port)) from None


def port_in_use(host: str, port: int) -> str:
    """Return the error for a port that another process uses: the process, the models if it is a
    Penstock server, and what to do."""
    from penstock.system.processes import free_port_after, port_owner

    owner, models = port_owner(port), served_models(host, port)
    used = f"port {port} is in use by {owner or 'another program'}"
    other = f"serve on another port: --port {free_port_after(port, host)}"
    if models is None:
        return f"{used}; {other}"
    stop = ""
    if owner is not None and owner.process is not None:
        stop = f", stop it (kill {owner.process.pid})"
    names = ", ".join(models) or "no model"
    return f"{used}, a Penstock server with {names}: use {url_of(host, port)}{stop}, or {other}"


def url_of(host: str, port: int) -> str:
    """Return the URL at which clients on this machine reach a server."""
    host = ALL_ADDRESSES.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def served_models(host: str, port: int) -> list[str] | None:
    """Return the names of the models of the Penstock server at the address; None if no Penstock
    server answers there within a second."""
    described = _get(host, port, "/v1/system/info")
    listed = _get(host, port, "/v1/models")
    if not {"build", "cpu", "hf_cache_path"} <= described.keys():
        return None
    models = listed.get("data", [])
    return [model["id"] for model in models if model.get("id") not in (None, DEFAULT)]


def _get(host: str, port: int, path: str) -> dict[str, Any]:
    """Return a JSON object of a server; {} if it does not answer with one."""
    connection = http.client.HTTPConnection(ALL_ADDRESSES.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
