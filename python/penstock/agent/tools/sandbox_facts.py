"""Facts about the sandbox that tool descriptions state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

NETWORK_NOTES: Final[dict[str, str]] = {
    "none": "There is no network: `socket()` fails with EPERM.",
    "loopback": "There is no network, except connections within the sandbox.",
    "full": "The network is available.",
}
CONFINED_FILES: Final = "Only the working directory and /tmp are writable."
UNCONFINED_FILES: Final = "Keep your files in the working directory."


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """The facts about a sandbox that concern tools.

    - `python_version`, `packages`: version and installed packages of the interpreter.
    - `network`: the network that tools have.
    - `files_confined`: tools can write only to the working directory and /tmp.
    """

    python_version: str = "3"
    packages: tuple[str, ...] = ()
    network: Literal["none", "loopback", "full"] = "full"
    files_confined: bool = False

    @property
    def network_note(self) -> str:
        """A sentence about the network, for the model."""
        return NETWORK_NOTES[self.network]

    @property
    def files_note(self) -> str:
        """A sentence about writable folders, for the model."""
        return CONFINED_FILES if self.files_confined else UNCONFINED_FILES
