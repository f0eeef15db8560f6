"""Server options: their defaults, and the rejection of unsupported ones by name."""

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
    "disable_metrics": False,
    "disable_access_log": False,
    "access_log_format": "text",
    "access_log_health": False,
    "disable_request_id_header": False,
    "keep_alive_interval_ms": 10_000,
    "body_limit_bytes": 50 * 1024 * 1024,
}
STORE_DEFAULTS = {"file_expiry_s": 30 * 60, "max_files": 4096}
# option -> (values without effect, a value that is rejected)
WITHOUT_RUNTIME: dict[str, tuple[tuple[Any, ...], Any]] = {
    "enable_search": ((False, None), True),
    "enable_code_execution": ((False, None), True),
    "code_exec_timeout": ((60, None), 61),
    "code_exec_python": (("python3", None), "python3.12"),
    "enable_shell": ((False, None), True),
    "shell_timeout": ((600, None), 1),
    "shell_path": (("/bin/sh", None), "/bin/bash"),
    "agent": ((False, None), True),
    "agent_permission": (("auto", None), "ask"),
    "max_tool_rounds": ((None,), 3),
}
SANDBOX: dict[str, tuple[tuple[Any, ...], Any]] = {
    "mode": (("auto", "off"), "on"),
    "max_memory_mb": ((2048,), 4096),
    "max_cpu_secs": ((600,), 60),
    "max_procs": ((64,), 65),
    "network": ((), "none"),
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


def test_no_ui_option_has_no_effect() -> None:
    assert loaded(no_ui=True) == loaded(no_ui=False) == loaded()


@pytest.mark.parametrize("name", WITHOUT_RUNTIME)
def test_unsupported_option_is_rejected_unless_it_requests_nothing(name: str) -> None:
    harmless, asking = WITHOUT_RUNTIME[name]
    for value in harmless:
        assert loaded(**{name: value}) == loaded()
    with pytest.raises(SettingsError, match=f"{name} cannot be used"):
        loaded(**{name: asking})


@pytest.mark.parametrize("name", SANDBOX)
def test_sandbox_is_rejected_unless_it_requests_nothing(name: str, tmp_path: Path) -> None:
    harmless, asking = SANDBOX[name]
    file = tmp_path / "penstock.toml"
    for value in harmless:
        file.write_text(f"[sandbox]\n{name} = {value!r}\n")
        assert loaded(file) == loaded()
    file.write_text(f"[sandbox]\n{name} = {asking!r}\n")
    with pytest.raises(SettingsError, match="no sandbox"):
        loaded(file)
