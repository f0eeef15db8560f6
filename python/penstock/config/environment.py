"""Environment variables of Penstock. No other module reads the environment.

`KEEP_ALIVE_INTERVAL`, `SERVICE_ALLOW_RUNTIME_LORA_UPDATING` and `SERVICE_LORA_ADAPTER_ROOT` are
part of the server's specified interface; `PENSTOCK_HOME` is Penstock's own variable; `HF_HOME`,
`HF_TOKEN`, `XDG_DATA_HOME` and `XDG_STATE_HOME` have their usual meaning.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_KEEP_ALIVE_MS = 10_000
MAX_KEEP_ALIVE_MS = 24 * 3600 * 1000
TRUE_WORDS = ("1", "true", "yes", "on")

DECODER_VARIABLES: Final = (
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "OPENBLAS_CORETYPE",
    "PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "VIRTUAL_ENV",
)

MALLOPT_SETTINGS: Final = (
    (-8, 1),  # M_ARENA_MAX, in heaps
    (-3, 256 * 1024),  # M_MMAP_THRESHOLD, in bytes
    (-1, 1024 * 1024),  # M_TRIM_THRESHOLD, in bytes
)
"""(option, value) for glibc's `mallopt`, with the option numbers of malloc.h."""


class Environment(msgspec.Struct, frozen=True):
    """Values from the environment.

    `home`: the folder of models and data.
    `hf_home`: Hugging Face's cache, shared with other tools.
    `hf_token`: the access token for the Hugging Face hub.
    `keep_alive_interval_ms`: the time between two keep-alives of a stream.
    `lora_updates`: True if clients may load and unload adapters.
    `lora_root`: clients may load adapters only from this folder; None: from any folder.
    `state`: the folder of what a terminal remembers; None: it remembers nothing.
    """

    home: Path
    hf_home: Path
    hf_token: str | None = None
    keep_alive_interval_ms: int = DEFAULT_KEEP_ALIVE_MS
    lora_updates: bool = False
    lora_root: Path | None = None
    state: Path | None = None


def read_environment(names: Mapping[str, str] | None = None) -> Environment:
    """Read the environment of this process, or `names` in its stead. Ignores values that cannot be
    parsed."""
    names = os.environ if names is None else names
    user = Path(names.get("HOME") or Path.home())
    data = Path(names.get("XDG_DATA_HOME") or user / ".local" / "share")
    state = Path(names.get("XDG_STATE_HOME") or user / ".local" / "state")
    cache = Path(names.get("XDG_CACHE_HOME") or user / ".cache")
    return Environment(
        home=Path(names.get("PENSTOCK_HOME") or data / "penstock"),
        hf_home=Path(names.get("HF_HOME") or cache / "huggingface"),
        hf_token=names.get("HF_TOKEN") or None,
        keep_alive_interval_ms=_keep_alive_ms(names.get("KEEP_ALIVE_INTERVAL", "")),
        lora_updates=names.get("SERVICE_ALLOW_RUNTIME_LORA_UPDATING", "").strip().lower()
        in TRUE_WORDS,
        lora_root=Path(root) if (root := names.get("SERVICE_LORA_ADAPTER_ROOT")) else None,
        state=state / "penstock",
    )


def limit_blas_threads() -> None:
    """Prevent numpy's BLAS from starting threads in this process and its children, because Penstock
    does not use BLAS. A value that the operator set is kept. Must be called before numpy is
    imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def limit_malloc_arenas() -> None:
    """Make glibc return freed memory to the system. Must be called before threads are started.

    By default glibc keeps up to eight heaps per core, with blocks of up to 32 MiB inside. With
    these defaults an API process with ten hostile clients held 250 MiB after five minutes, of which
    45 MiB were in use, and kept growing. With one heap and large blocks mapped separately, it held
    66 MiB, of which 28 MiB were in use, from the second minute on. Options that the operator set
    are kept. Does nothing without glibc.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in MALLOPT_SETTINGS:
            mallopt(option, value)


def child_environment(**extra: str) -> dict[str, str]:
    """Return this process's environment with `extra` variables, for a child process."""
    return {**os.environ, **extra}


def decoder_environment() -> dict[str, str]:
    """Return the environment of a process that reads hostile bytes: the variables with which
    Python finds its modules and libraries, and no secrets."""
    kept = {name: value for name in DECODER_VARIABLES if (value := os.environ.get(name))}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _keep_alive_ms(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        return DEFAULT_KEEP_ALIVE_MS
    value = int(text)
    return value if 0 < value <= MAX_KEEP_ALIVE_MS else DEFAULT_KEEP_ALIVE_MS
