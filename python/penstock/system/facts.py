"""Describes this machine and this build: the response of `GET /v1/system/info`."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock import __version__
from penstock.base.resources import available_bytes
from penstock.config import Environment

CPUINFO: Final = Path("/proc/cpuinfo")
MEMINFO: Final = Path("/proc/meminfo")


class CpuInfo(msgspec.Struct, frozen=True):
    """The machine's CPU. The server may be allowed to use fewer cores."""

    brand: str
    logical_cores: int
    physical_cores: int
    avx: bool
    avx2: bool
    avx512: bool
    fma: bool


class MemoryInfo(msgspec.Struct, frozen=True):
    """The machine's memory. `available_bytes`: the bytes that this process can still use, within
    the limits of its control groups."""

    total_bytes: int
    available_bytes: int


class DeviceInfo(msgspec.Struct, frozen=True):
    """A compute device. `ordinal`: its number among the devices of the same `kind`, from 0."""

    kind: Literal["cpu", "cuda", "metal"]
    ordinal: int
    name: str
    total_memory_bytes: int
    available_memory_bytes: int


class BuildInfo(msgspec.Struct, frozen=True):
    """The features of this build. `git_revision`: "unknown" in an installed package."""

    version: str
    cuda: bool = False
    metal: bool = False
    cudnn: bool = False
    flash_attn: bool = False
    flash_attn_v3: bool = False
    cutile: bool = False
    accelerate: bool = False
    mkl: bool = False
    git_revision: str = "unknown"


class MissingLayer(msgspec.Struct, frozen=True):
    """A layer of the sandbox that this machine lacks."""

    layer: str
    reason: str


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of server tools.

    - `mode`, `profile`: as configured.
    - `network`: the network that tools really have.
    - `layers`: the layers that hold.
    """

    mode: Literal["auto", "on", "off"]
    profile: Literal["restricted", "developer"]
    network: Literal["none", "loopback", "full"]
    layers: tuple[str, ...]
    missing: tuple[MissingLayer, ...]


class McpServerInfo(msgspec.Struct, frozen=True):
    """An MCP server whose tools are offered. `error`: why it is not connected."""

    name: str
    connected: bool
    tools: int
    error: str | None = None


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that this server runs. `dispatch`: a URL runs the functions of requests."""

    search: bool
    code_execution: bool
    shell: bool
    permission: Literal["auto", "ask", "deny"]
    dispatch: bool
    mcp_servers: tuple[McpServerInfo, ...]


class SystemInfo(msgspec.Struct, frozen=True):
    """The machine, the build, and the folder of models downloaded from Hugging Face
    (`hf_cache_path`).

    - `agent`: the tools that the server runs; None outside a server.
    - `sandbox`: the sandbox of the tools; None if no enabled tool runs in it.
    """

    os: str
    kernel: str
    cpu: CpuInfo
    memory: MemoryInfo
    devices: tuple[DeviceInfo, ...]
    build: BuildInfo
    hf_cache_path: str
    agent: AgentInfo | None = None
    sandbox: SandboxInfo | None = None


class CpuFacts(msgspec.Struct, frozen=True):
    """The contents of /proc/cpuinfo. `flags`: the CPU flags of the first core, such as "avx2"."""

    brand: str
    flags: frozenset[str]
    logical_cores: int
    physical_cores: int


def system_info(environment: Environment) -> SystemInfo:
    """Return the current description of this machine and this build."""
    cpu = read_cpu(CPUINFO)
    total = total_memory(MEMINFO)
    available = available_bytes()
    memory = MemoryInfo(total, total if available is None else available)
    return SystemInfo(
        os=_os_name(),
        kernel=platform.release(),
        cpu=CpuInfo(
            brand=cpu.brand,
            logical_cores=cpu.logical_cores,
            physical_cores=cpu.physical_cores,
            avx="avx" in cpu.flags,
            avx2="avx2" in cpu.flags,
            avx512="avx512f" in cpu.flags,
            fma="fma" in cpu.flags,
        ),
        memory=memory,
        devices=(DeviceInfo("cpu", 0, cpu.brand, memory.total_bytes, memory.available_bytes),),
        build=BuildInfo(__version__),
        hf_cache_path=str(environment.hf_home / "hub"),
    )


def read_cpu(path: Path) -> CpuFacts:
    """Parse a file like /proc/cpuinfo. If entries are missing, the result has one physical core per
    logical core and no flags."""
    brand, flags = platform.machine(), frozenset[str]()
    cores: set[tuple[str, str]] = set()
    logical = 0
    package = ""
    for name, value in _pairs(path):
        match name:
            case "processor":
                logical += 1
            case "model name" if logical == 1:
                brand = value
            case "flags" | "Features" if logical == 1:
                flags = frozenset(value.split())
            case "physical id":
                package = value
            case "core id":
                cores.add((package, value))
    logical = logical or os.cpu_count() or 1
    return CpuFacts(brand, flags, logical, len(cores) or logical)


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def total_memory(path: Path) -> int:
    """Parse a file like /proc/meminfo. Return the bytes of the machine's memory, 0 if unknown."""
    for name, value in _pairs(path):
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    return 0


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    split = (line.partition(":") for line in lines)
    return [(name.strip(), value.strip()) for name, _, value in split]
