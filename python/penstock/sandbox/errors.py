"""Errors of containers.

Exception
├── SandboxDied             the container has ended
├── SandboxFileError        a file could not be read or written
└── SandboxStartError       the container could not start
    └── MissingLayer        ... because mode "on" requires a layer that does not hold
"""

from __future__ import annotations


class SandboxDied(Exception):
    """The container has ended: its init died, broke the protocol, or was closed."""


class SandboxStartError(Exception):
    """The container could not start."""


class MissingLayer(SandboxStartError):
    """A layer of the sandbox does not hold on this machine, and mode "on" requires it.

    - `layer`: namespaces, landlock, seccomp, limits or network.
    - `reason`: the step that failed, with the system's message.
    """

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"sandbox layer {layer!r} does not hold on this machine: {reason}")
        self.layer = layer
        self.reason = reason


class SandboxFileError(Exception):
    """A file could not be read or written.

    `code`: `not_produced`, `not_a_regular_file`, `too_large`, `unreadable` or `unwritable`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
