"""Frozen settings, filled from the command line, TOML and the few environment names that the
specification fixes. The only room that reads the environment."""

from penstock.config.environment import (
    Environment,
    bound_heap,
    bound_library_threads,
    child_environment,
    read_environment,
)
from penstock.config.limits import SettingsError
from penstock.config.settings import (
    EngineSettings,
    LoraSettings,
    LoraSource,
    ModelSettings,
    ServerSettings,
    ServingSettings,
    StoreSettings,
)
from penstock.config.step_sizes import CPU_SIZES, GPU_SIZES, StepSizes

__all__ = [
    "CPU_SIZES",
    "GPU_SIZES",
    "EngineSettings",
    "Environment",
    "LoraSettings",
    "LoraSource",
    "ModelSettings",
    "ServerSettings",
    "ServingSettings",
    "SettingsError",
    "StepSizes",
    "StoreSettings",
    "bound_heap",
    "bound_library_threads",
    "child_environment",
    "read_environment",
]
