"""The description of server tools and their sandbox, and its checks."""

from __future__ import annotations

import pytest

from penstock.config import AgentSettings, SandboxSettings
from penstock.system.agent_facts import agent_info, sandbox_checks, sandbox_info

LAYERS = {"namespaces": True, "landlock": False, "cgroup": False}
MISSING = (("landlock", "the kernel has none"), ("cgroup", "not delegated"))


def checks(mode):
    info = sandbox_info(SandboxSettings(mode=mode), LAYERS, "loopback", MISSING)
    return {check.name: check for check in sandbox_checks(info)}


@pytest.mark.parametrize(("mode", "landlock"), [("auto", "warn"), ("on", "error")])
def test_each_layer_has_a_check_with_reason_and_cure(mode, landlock):
    found = checks(mode)
    assert found["sandbox_namespaces"].status == "ok"
    assert found["sandbox_landlock"].status == landlock
    assert found["sandbox_landlock"].message == "missing: the kernel has none"
    assert "5.13" in (found["sandbox_landlock"].suggestion or "")
    assert found["sandbox_cgroup"].status == "warn"
    assert "loopback" in found["sandbox_tools_network"].message


def test_a_sandbox_that_is_off_is_one_warning():
    assert [(c.name, c.status) for c in checks("off").values()] == [("sandbox", "warn")]


def test_the_tools_are_described_without_secrets():
    settings = AgentSettings(
        enable_shell=True, tool_dispatch_url="http://u:hush@a/", tool_dispatch_secret="hush"
    )
    info = agent_info(settings)
    assert (info.shell, info.search, info.dispatch) == (True, False, True)
    assert "hush" not in repr(info)
