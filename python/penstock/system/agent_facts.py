"""Describes the server tools and their sandbox, for `penstock doctor` and the system endpoints.

The callers pass the facts in: they measure the sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from penstock.config import AgentSettings, SandboxSettings
from penstock.system.checks import Check
from penstock.system.facts import AgentInfo, McpServerInfo, MissingLayer, SandboxInfo

# Layer -> the cure if it is missing.
CURES: Final[Mapping[str, str]] = {
    "launcher": "reinstall the package; the file penstock-sandbox belongs to it",
    "namespaces": "allow user namespaces: sysctl user.max_user_namespaces, or"
    " kernel.apparmor_restrict_unprivileged_userns=0; in a container, allow unshare and mount",
    "network": "allow network namespaces, or choose --sandbox-network full",
    "landlock": "use Linux 5.13 or later with `landlock` in the kernel's list of security modules",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
    "limits": "raise the hard limits of the server's user (ulimit -H)",
    "cgroup": "run the server in a delegated control group: systemd-run --user --scope"
    " -p Delegate=yes",
}
CURE_OF_OTHERS: Final = "use a newer kernel; --sandbox auto works without this layer"
LAYER_NAMES: Final = ("namespaces", "landlock", "seccomp", "limits", "cgroup")
# Layers without which `--sandbox on` starts too.
OPTIONAL: Final = ("cgroup", "landlock_scopes")


def agent_info(settings: AgentSettings, mcp_servers: tuple[McpServerInfo, ...] = ()) -> AgentInfo:
    """Return the description of the tools that `settings` enable."""
    return AgentInfo(
        search=settings.enable_search,
        code_execution=settings.enable_code_execution,
        shell=settings.enable_shell,
        permission=settings.agent_permission,
        dispatch=settings.tool_dispatch_url is not None,
        mcp_servers=mcp_servers,
    )


def sandbox_info(
    settings: SandboxSettings,
    layers: Mapping[str, bool],
    network: Literal["none", "loopback", "full"],
    missing: tuple[tuple[str, str], ...],
) -> SandboxInfo:
    """Return the description of a measured sandbox. `layers`: layer -> whether it holds. `missing`:
    (layer, reason)."""
    return SandboxInfo(
        mode=settings.mode,
        profile=settings.profile,
        network=network,
        layers=tuple(name for name, holds in layers.items() if holds),
        missing=tuple(MissingLayer(layer, reason) for layer, reason in missing),
    )


def sandbox_checks(sandbox: SandboxInfo) -> list[Check]:
    """Return a check for each layer of the sandbox. A missing layer is an error if the mode is
    "on" and needs it."""
    if sandbox.mode == "off":
        return [
            Check(
                "sandbox",
                "warn",
                "off: tools run with the rights of this server's user",
                "serve without --sandbox off",
            )
        ]
    checks = [Check(f"sandbox_{layer}", "ok", "holds") for layer in sandbox.layers]
    for one in sandbox.missing:
        required = sandbox.mode == "on" and one.layer not in OPTIONAL
        cure = CURES.get(one.layer, CURE_OF_OTHERS)
        status: Literal["error", "warn"] = "error" if required else "warn"
        checks.append(Check(f"sandbox_{one.layer}", status, f"missing: {one.reason}", cure))
    message = f"tools have the network: {sandbox.network}"
    return [*checks, Check("sandbox_tools_network", "ok", message)]
