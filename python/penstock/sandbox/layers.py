"""The layers of the sandbox that hold on this machine."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Literal

import msgspec

import penstock
from penstock.config.settings import SandboxSettings
from penstock.sandbox.errors import MissingLayer
from penstock.sandbox.types import Layers

# An editable install has the package in several folders; the program is in one of them.
_PLACES = [Path(folder, "bin", "penstock-sandbox") for folder in penstock.__path__]
BINARY = next((place for place in _PLACES if place.exists()), _PLACES[0])
# Layers that mode "on" does without: they depend on the service manager and on new kernels.
OPTIONAL_LAYERS = ("cgroup", "landlock_scopes")
PROBE_TIMEOUT_S = 10.0


class ReadyContainer(Layers, frozen=True, kw_only=True):
    """The report of an init that is ready: the layers, and the folders as programs see them."""

    working_directory: str
    temporary_directory: str

    def layers(self) -> Layers:
        """Return the layers alone."""
        return Layers(**{name: getattr(self, name) for name in Layers.__struct_fields__})


def network_of(settings: SandboxSettings) -> Literal["none", "loopback", "full"]:
    """Return the network that the settings ask for."""
    if settings.network is not None:
        return settings.network
    return "full" if settings.profile == "developer" else "loopback"


def probe(settings: SandboxSettings) -> Layers:
    """Return the layers that hold on this machine for these settings. The result is cached.

    Starts a container without programs and ends it, which takes some milliseconds.
    """
    if settings.mode == "off":
        return Layers()
    return _probe(network_of(settings))


def require_layers(settings: SandboxSettings) -> Layers:
    """Return probe()'s layers. Raises MissingLayer if mode "on" lacks one."""
    layers = probe(settings)
    if settings.mode == "on":
        for layer, reason in layers.missing:
            if layer not in OPTIONAL_LAYERS:
                raise MissingLayer(layer, reason)
    return layers


@functools.cache
def _probe(network: str) -> Layers:
    try:
        result = subprocess.run(
            [str(BINARY), "--probe", network],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            env={},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Layers(missing=(("launcher", str(error)),))
    if result.returncode != 0:
        return Layers(missing=(("launcher", result.stderr.decode("utf-8", "replace").strip()),))
    return msgspec.json.decode(result.stdout, type=ReadyContainer).layers()
