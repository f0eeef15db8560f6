"""Opens the files of an adapter in a folder that a client names.

A path is resolved once, and the result must be under the configured root. It is then opened
component by component without following links, so that no component can be replaced between check
and opening.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Final

from penstock.adapters.errors import AdapterRefused

MAX_PATH_BYTES: Final = 4096
# O_PATH needs no permission to list the folders of the path. Only Linux has it.
_PASS_THROUGH: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def resolve_folder(text: str, root: Path | None) -> Path:
    """Return the folder that a client names, with links resolved. A relative path starts at `root`,
    or at the working directory if `root` is None.

    Raises AdapterRefused: `invalid_adapter_path`, `adapter_path_forbidden`,
    `adapter_path_not_found`, `adapter_storage_unavailable`.
    """
    if not text.strip() or "\0" in text or len(text.encode("utf-8", "replace")) > MAX_PATH_BYTES:
        raise _path_refused("invalid_adapter_path", "lora_path must name a folder")
    folder = _without_links(root / text if root is not None else Path(text))
    if root is not None and not folder.is_relative_to(_without_links(root)):
        raise _path_refused(
            "adapter_path_forbidden", "lora_path is outside SERVICE_LORA_ADAPTER_ROOT"
        )
    try:
        mode = os.stat(folder).st_mode
    except PermissionError:
        raise _path_refused("adapter_path_forbidden", "lora_path may not be read") from None
    except (FileNotFoundError, NotADirectoryError):
        raise _no_folder(root) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise _path_refused(
                "invalid_adapter_path", "lora_path is too long or has a loop of links"
            ) from None
        raise _path_refused("adapter_storage_unavailable", "lora_path cannot be read") from None
    if not stat.S_ISDIR(mode):
        raise _path_refused("invalid_adapter_path", "lora_path is not a folder")
    return folder


def open_file(folder: Path, name: str, root: Path | None) -> int:
    """Open the regular file `name` in `folder` and return its descriptor. Links are followed if
    they lead to a file under `root`, or anywhere if `root` is None.

    Raises AdapterRefused: `adapter_file_not_found`, `adapter_file_forbidden`,
    `adapter_file_changed`, `invalid_adapter_file`, `adapter_storage_unavailable`.
    """
    path = _without_links(folder / name)
    if root is not None and not path.is_relative_to(_without_links(root)):
        raise _path_refused(
            "adapter_file_forbidden", f"{name} is outside SERVICE_LORA_ADAPTER_ROOT"
        )
    try:
        descriptor = _open(path)
    except FileNotFoundError:
        raise _path_refused("adapter_file_not_found", f"{name} is missing") from None
    except PermissionError:
        raise _path_refused("adapter_file_forbidden", f"{name} may not be read") from None
    except NotADirectoryError:
        raise _path_refused("adapter_file_changed", f"{name} changed while it was opened") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _path_refused(
                "invalid_adapter_file", f"{name} is part of a loop of links"
            ) from None
        raise _path_refused("adapter_storage_unavailable", f"{name} cannot be read") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _path_refused("invalid_adapter_file", f"{name} is not a regular file")
    return descriptor


def _without_links(path: Path) -> Path:
    """Resolve the links in the existing part of `path`. Loops of links remain."""
    return Path(os.path.realpath(path))


def _open(path: Path) -> int:
    """Open a path for reading without following links. Raises OSError, also if a component is a
    link."""
    parts = path.parts
    with contextlib.ExitStack() as opened:
        at = os.open(parts[0], _PASS_THROUGH)
        opened.callback(os.close, at)
        for part in parts[1:-1]:
            at = os.open(part, _PASS_THROUGH, dir_fd=at)
            opened.callback(os.close, at)
        return os.open(parts[-1], _READ, dir_fd=at)


def _no_folder(root: Path | None) -> AdapterRefused:
    starts = "the working directory" if root is None else "SERVICE_LORA_ADAPTER_ROOT"
    why = f"the folder lora_path does not exist; a relative path starts at {starts}"
    return _path_refused("adapter_path_not_found", why)


def _path_refused(code: str, why: str) -> AdapterRefused:
    return AdapterRefused(code, why, field="lora_path")
