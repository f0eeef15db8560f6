"""The checks of `penstock doctor` and `POST /v1/system/doctor`."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import socket
import zipfile
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock import __version__
from penstock.base.resources import available_cores
from penstock.config import Environment
from penstock.system.facts import CPUINFO, read_cpu
from penstock.system.processes import port_owner

GIB: Final = 1024**3
MIN_MEMORY_BYTES: Final = GIB
MIN_DISK_BYTES: Final = GIB
CUDA_MAJORS: Final = (13,)
# CPU inference is slow without one of these instruction sets.
BASIC_EXTENSIONS: Final = {"avx2", "asimddp"}
FAST_EXTENSIONS: Final = (
    "asimddp",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
EXTRAS: Final = {
    "speech": ("onnxruntime", "phonemizer-fork", "espeakng-loader"),
    "speech-torch": ("torch", "transformers"),
    "images": ("diffusers", "transformers", "torch", "accelerate", "pillow"),
}
"""Extra that some models need -> the packages that it installs."""
EXTRA_USES: Final = {
    "speech": "Kokoro and Piper voices",
    "speech-torch": "speech models of transformers",
    "images": "image models",
}


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check. `suggestion`: a remedy if the status is not "ok"."""

    name: str
    status: Literal["ok", "warn", "error"]
    message: str
    suggestion: str | None = None


def all_checks(environment: Environment, port: int) -> list[Check]:
    """Run all checks in a fixed order and return their results. `port`: the TCP port that the
    server would use. The only side effect is a temporary file in the home folder."""
    home = environment.home
    return [*machine_checks(environment), check_default_model(home), check_port(port)]


def machine_checks(environment: Environment) -> list[Check]:
    """Run the checks that also apply while a server runs, and return their results."""
    return [
        check_python(),
        check_cpu(CPUINFO),
        check_native_kernels(),
        check_cpu_levels(environment.home),
        check_gpu_kernels(),
        check_memory(Path("/proc/meminfo")),
        check_home(environment.home),
        check_disk(environment.home),
        *map(check_extra, EXTRAS),
    ]


def check_python() -> Check:
    """Report the versions of Penstock, Python and the system."""
    system = f"{platform.system()} {platform.machine()}"
    return Check(
        "python", "ok", f"Penstock {__version__}, Python {platform.python_version()}, {system}"
    )


def check_cpu(cpuinfo: Path) -> Check:
    """Report the instruction sets of this CPU that the kernels use. `cpuinfo`: a file like
    /proc/cpuinfo."""
    flags = read_cpu(cpuinfo).flags
    found = [name for name in FAST_EXTENSIONS if name in flags]
    cores = available_cores()
    message = f"{cores} cores; " + (", ".join(found) or "none of the fast instruction sets")
    if BASIC_EXTENSIONS.isdisjoint(found):
        return Check("cpu_extensions", "warn", message, "expect slow scalar arithmetic")
    return Check("cpu_extensions", "ok", message)


def check_native_kernels() -> Check:
    """Check that the native extension module can be loaded."""
    try:
        importlib.import_module("penstock._native")
    except ImportError as error:
        suggestion = "reinstall the package with a C++20 compiler (`make setup`)"
        return Check("native_kernels", "error", f"cannot be loaded: {error}", suggestion)
    return Check("native_kernels", "ok", "the extension module loads")


def check_cpu_levels(home: Path) -> Check:
    """Report the instruction sets that both this machine and this build support, and the selected
    instruction sets of each model that was loaded with `home`."""
    try:
        from penstock.runtime.cpu.isa_selection import saved_isa_selections, summary
    except ImportError:
        return Check("cpu_levels", "ok", "none without the native kernels")
    levels, kept = saved_isa_selections(home)
    chosen = [f"{selection.model_id}: {summary(selection.levels)}" for selection in kept]
    text = "; ".join(chosen) or "the first start of a model selects by measurement"
    return Check("cpu_levels", "ok", f"{', '.join(levels)}; {text}")


def check_gpu_kernels() -> Check:
    """Report the installed archives of compiled GPU kernels. The status is "ok" even without
    any."""
    found = []
    for major in CUDA_MAJORS:
        package = importlib.util.find_spec(f"penstock_cuda{major}")
        if package is not None and package.origin is not None:
            folder = Path(package.origin).parent
            found += [_count_kernels(path) for path in sorted(folder.glob("kernels_*.zip"))]
    message = (
        "; ".join(found) or "none are installed; a GPU's kernels are compiled at their first use"
    )
    return Check("gpu_kernels", "ok", message)


def _count_kernels(archive: Path) -> str:
    """Return a description of an archive of compiled kernels: their number and their GPU target.
    Reads the format that `kernels.triton.archive` defines, which needs torch and so is not
    imported."""
    try:
        with zipfile.ZipFile(archive) as members:
            index = json.loads(members.read("index.json"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return f"{archive.name} cannot be read"
    return f"{len(index['kernels'])} compiled kernels for {index['target']}"


def check_memory(meminfo: Path) -> Check:
    """Check the available memory. `meminfo`: a file like /proc/meminfo."""
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            free_bytes = int(line.split()[1]) * 1024
            message = f"{free_bytes / GIB:.1f} GiB available"
            if free_bytes < MIN_MEMORY_BYTES:
                return Check("memory", "warn", message, "close other programs or add memory")
            return Check("memory", "ok", message)
    return Check("memory", "warn", "the system does not report its available memory")


def check_home(home: Path) -> Check:
    """Check that models can be stored in the folder `home`."""
    probe = home / ".doctor"
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        suggestion = "set PENSTOCK_HOME to a writable folder"
        return Check("home_writable", "error", f"{home}: {error.strerror}", suggestion)
    return Check("home_writable", "ok", str(home))


def check_disk(home: Path) -> Check:
    """Check that the disk with the folder `home` has space for models."""
    folder = next(path for path in (home, *home.parents) if os.access(path, os.F_OK))
    free_bytes = shutil.disk_usage(folder).free
    message = f"{free_bytes / GIB:.1f} GiB free at {folder}"
    if free_bytes < MIN_DISK_BYTES:
        return Check("disk_space", "warn", message, "free disk space or set PENSTOCK_HOME")
    return Check("disk_space", "ok", message)


def check_extra(extra: str) -> Check:
    """Report the versions of the packages of an extra, or the command that installs it. `extra`: a
    key of EXTRAS. The status is always "ok", because only some models need the packages."""
    found = {package: _version(package) for package in EXTRAS[extra]}
    missing = [package for package, version in found.items() if version is None]
    if missing:
        state = f"need {', '.join(missing)} (pip install 'penstock[{extra}]')"
    else:
        state = ", ".join(f"{package} {version}" for package, version in found.items())
    return Check(f"extra_{extra}", "ok", f"{EXTRA_USES[extra]}: {state}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_default_model(home: Path) -> Check:
    """Check that the default model has been downloaded."""
    from penstock.models.hub.catalogue import CATALOGUE, DEFAULT_MODEL
    from penstock.models.hub.sources import is_fetched

    try:
        fetched = is_fetched(CATALOGUE[DEFAULT_MODEL], home)
    except OSError as error:
        suggestion = "set PENSTOCK_HOME to a readable folder"
        return Check("default_model", "error", f"{home}: {error.strerror}", suggestion)
    if fetched:
        return Check("default_model", "ok", f"{DEFAULT_MODEL} is on disk")
    suggestion = f"`penstock pull {DEFAULT_MODEL}` downloads it; the first start does so too"
    return Check("default_model", "warn", f"{DEFAULT_MODEL} is not on disk", suggestion)


def check_port(port: int) -> Check:
    """Check that the server's port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            owner = port_owner(port)
            reason = f"in use by {owner}" if owner else os.strerror(error.errno or 0)
            message = f"{port}: {reason}"
            return Check("port", "warn", message, "serve with another --port")
    return Check("port", "ok", f"{port} is free")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
