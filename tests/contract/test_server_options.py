"""Server options: their defaults, and the switches that options of tools need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config import (
    CPU_STEP_SIZES,
    GPU_STEP_SIZES,
    ServingSettings,
    SettingsError,
    read_environment,
)
from penstock.config.load_settings import load_serving

# The specification calls the second prefix_cache_n, 16 by default: 0 disables (test_former_keys).
ENGINE_DEFAULTS = {"no_kv_cache": False, "enable_prefix_caching": True}
SERVER_DEFAULTS = {
    "host": "0.0.0.0",
    "port": 1234,
    "no_ui": False,
    "disable_metrics": False,
    "disable_access_log": False,
    "access_log_format": "text",
    "access_log_health": False,
    "disable_request_id_header": False,
    "keep_alive_interval_ms": 10_000,
    "body_limit_bytes": 50 * 1024 * 1024,
}
STORE_DEFAULTS = {"file_expiry_s": 30 * 60, "max_files": 4096}
AGENT_DEFAULTS = {
    "enable_search": False,
    "enable_code_execution": False,
    "code_exec_timeout": 60,
    "code_exec_python": "python3",
    "enable_shell": False,
    "shell_timeout": 600,
    "shell_path": "/bin/sh",
    "agent_permission": "auto",
    "max_tool_rounds": None,
}
SANDBOX_DEFAULTS = {"mode": "auto", "max_memory_mb": 2048, "max_cpu_secs": 600, "max_procs": 64}
# option -> (the switch that it needs, another value than the default)
NEEDING: dict[str, tuple[str, Any]] = {
    "code_exec_timeout": ("enable_code_execution", 61),
    "code_exec_python": ("enable_code_execution", "/bin/sh"),
    "shell_timeout": ("enable_shell", 1),
    "shell_path": ("enable_shell", "/bin/ls"),
}
SANDBOX: dict[str, Any] = {
    "mode": "on",
    "max_memory_mb": 4096,
    "max_cpu_secs": 60,
    "max_procs": 65,
    "network": "none",
    "profile": "developer",
}


def loaded(file: Path | None = None, **server: Any) -> ServingSettings:
    return load_serving({}, server, {}, file=file, environment=read_environment({"HOME": "/h"}))


@pytest.mark.parametrize(("name", "default"), ENGINE_DEFAULTS.items())
def test_default_of_an_engine_option(name: str, default: Any) -> None:
    (model,) = loaded().models
    assert getattr(model.engine, name) == default


def test_default_of_max_num_seqs_is_that_of_the_device() -> None:
    (model,) = loaded().models
    assert model.engine.step_sizes(CPU_STEP_SIZES).max_num_seqs == 32
    assert model.engine.step_sizes(GPU_STEP_SIZES[0]).max_num_seqs == 256


@pytest.mark.parametrize(("name", "default"), SERVER_DEFAULTS.items())
def test_default_of_a_server_option(name: str, default: Any) -> None:
    assert getattr(loaded().server, name) == default


@pytest.mark.parametrize(("name", "default"), STORE_DEFAULTS.items())
def test_default_of_a_storage_limit(name: str, default: Any) -> None:
    assert getattr(loaded().server.store, name) == default


@pytest.mark.parametrize(("name", "default"), AGENT_DEFAULTS.items())
def test_default_of_a_tool_option(name: str, default: Any) -> None:
    assert getattr(loaded().server.agent, name) == default
    assert loaded(**{name: default}) == loaded()


@pytest.mark.parametrize(("name", "default"), SANDBOX_DEFAULTS.items())
def test_default_of_a_sandbox_option(name: str, default: Any) -> None:
    assert getattr(loaded().server.agent.sandbox, name) == default


@pytest.mark.parametrize("name", NEEDING)
def test_an_option_of_a_tool_needs_its_switch(name: str) -> None:
    switch, value = NEEDING[name]
    with pytest.raises(SettingsError, match=f"^{name} needs {switch}"):
        loaded(**{name: value})
    for given in (switch, "agent"):
        agent = loaded(**{name: value, given: True}).server.agent
        assert getattr(agent, name) == value and getattr(agent, switch)


def test_agent_enables_search_code_execution_and_shell() -> None:
    agent = loaded(agent=True).server.agent
    assert agent.enable_search and agent.enable_code_execution and agent.enable_shell
    assert loaded(agent=False) == loaded()


@pytest.mark.parametrize("name", SANDBOX)
def test_sandbox_table_sets_the_sandbox(name: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f"[sandbox]\n{name} = {SANDBOX[name]!r}\n")
    assert getattr(loaded(file).server.agent.sandbox, name) == SANDBOX[name]
