"""Frozen settings, filled from the command line, TOML and the few environment names that the
specification fixes. The only room that reads the environment."""

from penstock.config.settings import EngineSettings, ServerSettings

__all__ = ["EngineSettings", "ServerSettings"]
