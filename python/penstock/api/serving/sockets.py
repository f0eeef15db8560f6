"""The sockets on which a server listens, and their URLs."""

from __future__ import annotations

import errno
import socket
from typing import Final

UNKNOWN_HOST: Final = "--host must be an address of this machine: 127.0.0.1, or 0.0.0.0 for all"
ALL_ADDRESSES: Final = ("0.0.0.0", "::")
BIND_ERROR_HINTS: Final = {
    errno.EADDRINUSE: "another program uses this port; choose another --port (0: any free port)",
    errno.EACCES: "ports below 1024 are reserved by the system; choose a higher --port",
}


def bind_socket(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that is bound to the address and does not listen yet. Raises OSError, whose
    message names the address.

    `shared`: other processes of this user may bind the address too; each gets a part of the
    connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        hint = BIND_ERROR_HINTS.get(error.errno or 0, UNKNOWN_HOST)
        raise OSError(error.errno, f"{error.strerror}: {host}:{port}; {hint}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL at which clients on this machine reach the socket."""
    host, port = bound.getsockname()[:2]
    if host in ALL_ADDRESSES:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listening_note(bound: socket.socket) -> str:
    """Return a note for the ready line if the socket listens on all addresses, else ""."""
    host, port = bound.getsockname()[:2]
    if host not in ALL_ADDRESSES:
        return ""
    return f"listening on [{host}]:{port}, " if ":" in host else f"listening on {host}:{port}, "
