"""Frozen settings from the command line, a TOML file and the environment.

No other package reads the environment.
"""

from penstock.config.environment import (
    Environment,
    child_environment,
    decoder_environment,
    limit_blas_threads,
    limit_malloc_arenas,
    read_environment,
)
from penstock.config.settings import (
    AgentSettings,
    EngineSettings,
    LoraSettings,
    LoraSource,
    MediaSettings,
    ModelSettings,
    SandboxSettings,
    SearchSettings,
    ServerSettings,
    ServingSettings,
    StoreSettings,
)
from penstock.config.step_sizes import CPU_STEP_SIZES, GPU_STEP_SIZES, StepSizes
from penstock.config.validation import SettingsError

__all__ = [
    "CPU_STEP_SIZES",
    "GPU_STEP_SIZES",
    "AgentSettings",
    "EngineSettings",
    "Environment",
    "LoraSettings",
    "LoraSource",
    "MediaSettings",
    "ModelSettings",
    "SandboxSettings",
    "SearchSettings",
    "ServerSettings",
    "ServingSettings",
    "SettingsError",
    "StepSizes",
    "StoreSettings",
    "child_environment",
    "decoder_environment",
    "limit_blas_threads",
    "limit_malloc_arenas",
    "read_environment",
]
